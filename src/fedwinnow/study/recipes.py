"""The tables of the papers by name: the settings of each row and column, and the numbers that the paper prints."""

from __future__ import annotations

import csv
import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

from fedwinnow import catalogue
from fedwinnow.errors import UsageError, unknown
from fedwinnow.options import parse_spec
from fedwinnow.study.scene_words import data_in_words, noise_in_words, partition_in_words
from fedwinnow.study.sweep_plan import SETTINGS, Job, Plan, Settings, Variant

Scale = Literal["laptop", "features", "paper"]
FOLDER = Path(__file__).parent.parent / "recipes"
PAPERS = ("feddiv", "fedgr", "fedrn", "fednoro", "fedes")
VISITS, LEAST_ROUNDS = 10, 40  # on frozen features: how often a site is trained, and the fewest rounds
# A paper's figure -> its name in a summary; "unstated" means that the paper does not say which round it prints.
FIGURES = {
    "best.accuracy": "best",
    "last10.accuracy": "last10",
    "unstated.accuracy": "last",
    "best.balanced_accuracy": "best",
    "last10.balanced_accuracy": "last10",
    "unstated.top1": "last",
    "unstated.top5": "top5",
    "quality.mse": "quality_mse",
    "detection.recall": "study.recall",
    "detection.precision": "study.precision",
    "detection.matching-ratio": "study.matching_ratio",
}


@dataclass(frozen=True)
class Setting:
    """A column of a paper's table, in the paper's words."""

    data: str
    partition: str
    noise: str


@dataclass(frozen=True)
class Recipe:
    """One table of one paper."""

    name: str
    table: dict[str, Any]  # its title and how it is scored
    book: dict[str, Any]  # the paper's recipe file: the settings behind the names of rows and columns
    cells: tuple[dict[str, str], ...]  # the numbers that the paper prints

    @property
    def title(self) -> str:
        """Paper and table in words."""
        return f"{self.book['title']}, table {self.name.rpartition('-')[2]}: {self.table['title']}"

    @property
    def rows(self) -> tuple[str, ...]:
        """The methods, in the order of the paper."""
        return tuple(dict.fromkeys(cell["method"] for cell in self.cells))

    @cached_property
    def settings(self) -> tuple[Setting, ...]:
        """The columns, in the order of the paper."""
        return tuple(dict.fromkeys(map(setting_of, self.cells)))

    @property
    def figures(self) -> tuple[str, ...]:
        """The figures that the paper prints, by their names in fedwinnow."""
        return tuple(dict.fromkeys(FIGURES[cell["metric"]] for cell in self.cells))

    def lacking(self, scale: Scale) -> tuple[str, ...]:
        """The rows that cannot be played at this scale: an encoder has no views of an image to compare."""
        left_out = self.book.get("features", {}).get("leave_out", ()) if scale == "features" else ()
        return tuple(row for row in self.rows if row in left_out)

    @property
    def missing(self) -> tuple[str, ...]:
        """The rows whose method fedwinnow does not have."""
        known = catalogue.entries("methods")
        return tuple(row for row in self.rows if parse_spec(self.method(row, "paper")["method"])[0] not in known)

    def columns(self, words: Sequence[str] = ()) -> tuple[str, ...]:
        """The names of the columns; with `words`, of those whose name contains one of them."""
        every = tuple(map(self.label, self.settings))
        for word in words:
            if not any(word in label for label in every):
                raise unknown(f"column of {self.name}", word, every)
        return tuple(label for label in every if not words or any(word in label for word in words))

    def label(self, setting: Setting) -> str:
        """A column's name: the parts that differ between the columns."""
        parts = [
            part for part in ("data", "partition", "noise") if len({getattr(one, part) for one in self.settings}) > 1
        ]
        return ", ".join(getattr(setting, part) for part in parts or ("data", "partition"))

    def words(self, setting: Setting) -> str:
        """A column's name in words."""
        parts = {
            "data": data_in_words(setting.data) or setting.data,
            "noise": noise_in_words(self.noise(setting.noise)["noise"]) or setting.noise,
            "partition": partition_in_words(self.book["partitions"][setting.partition]["partition"]),
        }
        differing = [part for part in parts if len({getattr(one, part) for one in self.settings}) > 1]
        words = ", ".join(parts[part] or getattr(setting, part) for part in differing or ("data", "partition"))
        return words.replace(" (classes 0 to 9)", "")  # FedDiv's draw; a note of its tables explains it

    def column_words(self) -> dict[str, str]:
        """The words of every column by its name."""
        return {self.label(setting): self.words(setting) for setting in self.settings}

    def method(self, row: str, scale: Scale) -> Settings:
        """The settings of a row: its method, with the braces not yet filled, and other settings if it has some.

        A row that is not in the recipe file is the spec of a method.
        """
        entry = self.book["methods"].get(row, row)
        if scale == "features":
            return method_on_features(self.book, row, entry)
        if isinstance(entry, str):
            return {"method": entry}
        return {"method": entry[scale]} if scale in entry else dict(entry)

    def job_settings(self, row: str, setting: Setting, scale: Scale) -> Settings:
        """All settings of one run of the table, except the seed."""
        kinds = self.book["data"][setting.data]
        data = on_features(kinds["paper"], kinds["laptop"]) if scale == "features" else dict(kinds[scale])
        place = dict(self.book["partitions"][setting.partition])
        noise = self.noise(setting.noise)
        fill = {**place.pop("fill", {}), **noise.pop("fill", {}), **data.pop("fill", {})}
        row_settings = self.method(row, scale)
        row_settings["method"] = row_settings["method"].format(**fill)
        return {**place, **noise, **data, **row_settings}

    def noise(self, word: str) -> Settings:
        """The settings of a noise: the noise itself, and the values for braces in the methods."""
        entry = self.book["noises"][word]
        return {"noise": entry} if isinstance(entry, str) else dict(entry)

    def published(self) -> dict[tuple[str, str, str], tuple[float, float | None]]:
        """The paper's numbers by row, column and figure; if it prints a cell twice, the first."""
        found: dict[tuple[str, str, str], tuple[float, float | None]] = {}
        for cell in self.cells:
            place = (cell["method"], self.label(setting_of(cell)), FIGURES[cell["metric"]])
            found.setdefault(place, (float(cell["mean"]), float(cell["std"]) if cell["std"] else None))
        return found

    def plan(
        self,
        out: Path,
        scale: Scale,
        *,
        rows: Sequence[str] = (),
        also: Sequence[str] = (),
        columns: Sequence[str] = (),
        seeds: Sequence[int] = (),
        changes: Settings | None = None,
    ) -> Plan:
        """The runs of every printed cell whose method fedwinnow has, and of the methods in `also`."""
        for row in rows:
            if row not in self.rows:
                raise unknown(f"row of {self.name}", row, self.rows)
        for key in changes or {}:
            if key not in SETTINGS:
                raise unknown("setting", key, SETTINGS)
        beyond = (*self.missing, *self.lacking(scale))
        wanted = [row for row in rows or self.rows if row not in beyond]
        printed = [(cell["method"], setting_of(cell)) for cell in self.cells if cell["method"] in wanted]
        cells = dict.fromkeys([*printed, *((row, setting) for row in also for setting in self.settings)])
        chosen = self.columns(columns)
        jobs = []
        for seed in seeds or self.book["seeds"]["paper" if scale == "paper" else "laptop"]:
            for row, setting in cells:
                if self.label(setting) in chosen:
                    settings = {**self.job_settings(row, setting, scale), **(changes or {}), "seed": seed}
                    scene = Variant(self.label(setting), {})
                    folder = out / scene.folder / Variant(row, {}).folder / f"seed-{seed}"
                    jobs.append(Job(row, scene.name, seed, folder, settings))
        if not jobs:
            raise UsageError(
                f"{self.name}: this version has none of the wanted methods ({', '.join(rows or self.rows)})"
                f"{' on frozen features' if scale == 'features' else ''}."
            )
        return Plan(out, tuple(jobs))


def on_features(paper: Settings, laptop: Settings) -> Settings:
    """The paper's data and sites, but a linear head on frozen features, in as many rounds as such a head needs.

    Every site is trained ten times, as in the miniatures, in 40 rounds or more and never in more than the paper's.
    """
    kept = {key: value for key, value in paper.items() if key not in ("model", "optimizer", "views", "fill")}
    rounds = min(paper["rounds"], max(LEAST_ROUNDS, math.ceil(VISITS / paper["participation"])))
    fill = {**paper.get("fill", {}), **laptop.get("fill", {})}
    return {**kept, "encoder": "lite", "model": "linear", "rounds": rounds, "fill": fill}


def method_on_features(book: dict[str, Any], row: str, entry: Any) -> Settings:
    """The settings of a row on frozen features: those of the miniature, with what the recipe file changes."""
    changes = book.get("features", {})
    settings = entry if isinstance(entry, dict) and "method" in entry else {"method": entry}
    spec = settings["method"]["laptop"] if isinstance(settings["method"], dict) else settings["method"]
    spec = changes.get("methods", {}).get(row, spec)
    more = changes.get("append", {}).get(spec.partition(":")[0]) if row in book["methods"] else None
    if more is not None:
        spec += f"{',' if ':' in spec else ':'}{more}"
    return {**{key: value for key, value in settings.items() if key != "views"}, "method": spec}


def setting_of(cell: dict[str, str]) -> Setting:
    """The column to which a printed cell belongs."""
    return Setting(cell["dataset"], cell["partition"], cell["noise"])


@cache
def recipes() -> dict[str, Recipe]:
    """Every table of the papers by name, without averages over columns."""
    with (FOLDER / "published.csv").open(encoding="utf-8", newline="") as stream:
        printed = [cell for cell in csv.DictReader(stream) if cell["noise"] != "average"]
    found = {}
    for paper in PAPERS:
        book = tomllib.loads((FOLDER / f"{paper}.toml").read_text(encoding="utf-8"))
        for name, table in book["tables"].items():
            cells = tuple(cell for cell in printed if cell["table"] == name)
            found[name] = Recipe(name, table, book, cells)
    return found


def find_recipe(name: str) -> Recipe:
    """The recipe of this name; an unknown name is an error that lists the names and guesses."""
    if name not in recipes():
        raise unknown("recipe", name, recipes())
    return recipes()[name]
