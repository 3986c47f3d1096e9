"""Settings and results of runs, read from their folders for tables and figures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedwinnow import files
from fedwinnow.errors import DataError, UsageError
from fedwinnow.experiment.own_code import hash_of_source
from fedwinnow.experiment.run_folder import RunFolder
from fedwinnow.files import json_of
from fedwinnow.metrics.task import Figure
from fedwinnow.study.sweep_plan import read_book

Names = dict[str, dict[str, str]]  # by a run's folder within its sweep: the names of its row and its scene


@dataclass(frozen=True, eq=False)
class Record:
    """One run: its folder, its settings, its summary."""

    folder: Path
    settings: dict[str, str]  # every key of config.toml as a text; the method as the shortest spec
    summary: dict[str, Any]
    sweep: Path | None = None  # the folder of the sweep that made it, with its row and column there
    row: str = ""
    column: str = ""
    current: bool = True  # whether the source of fedwinnow that made it is the one that runs now
    changed: tuple[str, ...] = ()  # files of the user's code that have changed since

    @property
    def outdated(self) -> bool:
        """Whether the code has changed since, so that the result might differ today."""
        return not self.current or bool(self.changed)

    @property
    def seed(self) -> int:
        """The seed, by which runs are paired."""
        return int(self.summary["seed"])

    @property
    def finished(self) -> bool:
        """Whether all its rounds were played."""
        return bool(self.summary["status"] == "finished")

    @property
    def competes(self) -> bool:
        """Whether it can win: it did not see the truth, and the data stayed at the sites."""
        return not self.summary.get("cheats") and bool(self.summary.get("federated", True))

    @property
    def scene(self) -> str:
        """The hash of the scene it was played on."""
        return str(self.summary["scene"]["hash"])

    @property
    def figures(self) -> set[str]:
        """The dotted names of the numbers in the summary."""
        return set(dotted(self.summary))

    def figure(self, path: str) -> Figure:
        """A number of the summary by its dotted name; None if there is none."""
        value: Any = self.summary
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        return float(value) if isinstance(value, int | float) else None


def read_records(places: Iterable[str | Path]) -> list[Record]:
    """Every run in these folders and below them, in the order of their paths."""
    given = [Path(place) for place in places]
    if not given:
        raise UsageError("no run folder was given; allowed: one or more, for example runs, or runs/fedavg-digits-0.")
    found: dict[Path, Record] = {}
    books: dict[Path, Names] = {}
    for place in given:
        if not place.is_dir():
            reason = "it is a file" if place.exists() else "there is no such folder"
            raise DataError(f"{place}: {reason}. Allowed: run folders, or folders that have some.")
        for config in sorted([*place.glob("config.toml"), *place.glob("**/*/config.toml")]):
            if (config.parent / "summary.json").exists() and not is_part_of_gain(config.parent, place):
                found.setdefault(config.parent.resolve(), named(read_record(config.parent), books))
    if not found:
        raise DataError(
            f"{', '.join(map(str, given))}: no run in there (no folder has config.toml and summary.json). Allowed: run "
            "folders, or folders that have some; `fedwinnow run` and `fedwinnow sweep` make them."
        )
    return list(found.values())


def is_part_of_gain(folder: Path, place: Path) -> bool:
    """Whether a folder belongs to what `fedwinnow gain` has played for a run in this place: a part of that run."""
    run = folder.parent.parent
    within = run == place or place in run.parents
    return within and folder.parent.name == "gain" and (run / "config.toml").exists()


def finished(records: Sequence[Record]) -> list[Record]:
    """The finished runs; an error if there is none."""
    done = [record for record in records if record.finished]
    if not done:
        first = f"{records[0].folder} ({records[0].summary['status']})"
        more = f" and {len(records) - 1} more" if len(records) > 1 else ""
        raise DataError(f"no run is finished: {first}{more}. Continue one with its command and --resume.")
    return done


def read_record(folder: Path) -> Record:
    """The record of one run folder."""
    run = RunFolder(folder)
    config, summary = run.settings(), run.read_json("summary.json")
    texts = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in config.items()}
    identity = read_identity(folder)
    return Record(
        folder,
        texts | {"method": str(summary["method"])},
        summary,
        current=files.is_current(identity),
        changed=changed_files(identity, config),
    )


def read_identity(folder: Path) -> Any:
    """The content of identity.json; None if it is missing or cannot be read."""
    try:
        return json_of(folder / "identity.json")
    except DataError:
        return None


def changed_files(identity: Any, config: dict[str, Any]) -> tuple[str, ...]:
    """Which files of the user's method or model have changed since the run; files that are gone do not count."""
    code = identity.get("code") if isinstance(identity, dict) else None
    given = {"method": str(config.get("method", {}).get("kind", "")), "model": str(config.get("model", ""))}
    found = []
    for part, text in given.items():
        pieces = code.get(part) if isinstance(code, dict) else None
        file = Path(text.rpartition(".py")[0] + ".py")
        if isinstance(pieces, dict) and file.name in pieces and file.is_file():
            home = file.resolve().parent
            found += [name for name, known in pieces.items() if (hash_of_source(home / name) or known) != known]
    return tuple(dict.fromkeys(found))


def outdated_words(records: Sequence[Record]) -> list[str]:
    """Sentences about runs that were made by other code than there is now."""
    older = sum(not record.current for record in records)
    words = [f"{older} of {len(records)} runs were made by another version of the source."] if older else []
    files = dict.fromkeys(name for record in records for name in record.changed)
    for name in files:
        count = sum(name in record.changed for record in records)
        words.append(f"{count} of {len(records)} runs were made before {name} was changed.")
    return words


def named(record: Record, books: dict[Path, Names]) -> Record:
    """The record with the names that its sweep has for its row and its scene, if a sweep made it.

    `books` caches every sweep.json, which all runs of a sweep need.
    """
    folder = record.folder.resolve()
    for sweep in folder.parents[:3]:
        if sweep not in books:
            books[sweep] = read_book(sweep).get("names", {})
        if names := books[sweep].get(folder.relative_to(sweep).as_posix()):
            return replace(record, sweep=sweep, row=names["row"], column=names["scene"])
    return record


def is_number(value: Any) -> bool:
    """Whether a value of a file is a number; true and false are not, although Python counts them as 1 and 0."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def dotted(table: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """The names of the numbers in nested tables, joined with dots."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from dotted(value, f"{prefix}{key}.")
        elif is_number(value):
            yield f"{prefix}{key}"
