"""The audit folder: a folder per site that stays on the site, and counts for the coordinator."""

from __future__ import annotations

import io
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwinnow import catalogue
from fedwinnow.auditing.claims import Claims
from fedwinnow.auditing.field_evidence import in_words
from fedwinnow.auditing.judging_models import Judged
from fedwinnow.auditing.oddities import Oddities, oddities_of
from fedwinnow.auditing.spreadsheet_files import read_table, table_text
from fedwinnow.auditing.statements import Statement, statement_of
from fedwinnow.data.dataset import Dataset
from fedwinnow.data.sources.table_source import TableSource
from fedwinnow.data.table_reading import TextTable
from fedwinnow.errors import DataError
from fedwinnow.files import FORMAT, Form, check_format, demand, json_of, replacing, sweep, write_text
from fedwinnow.mathematics.strata import Strata, histogram
from fedwinnow.randomness import Floats, Integers, stream_key
from fedwinnow.scene.scene import Scene

LARGEST_SIDE = 256  # pixels
LOSSLESS_SIDE = 64  # pixels; smaller pictures are saved without loss
LONGEST_CELL = 400  # letters
MOST_CELLS = 40
DRAWN_SHOWN = 40  # of each stratum


@dataclass(frozen=True, eq=False)
class Previews:
    """The previews of a data set's training part."""

    dataset: Dataset
    table: TextTable | None  # if the samples came from a table
    columns: tuple[str, ...]
    lines: dict[str, int]  # id -> row of the table
    ignored: tuple[str, ...] = ()  # columns that training does not use; people may still want to see them

    @classmethod
    def of(cls, dataset: Dataset, table: TextTable | None = None, columns: tuple[str, ...] = ()) -> Previews:
        """The previews, with the table that the data was read from if there is one."""
        lines = {str(name): row for row, name in enumerate(dataset.train.ids)} if table is not None else {}
        ignored: tuple[str, ...] = ()
        if table is None and dataset.kind != "images" and dataset.source:
            source = catalogue.make("data", dataset.source)
            if isinstance(source, TableSource):
                table = source.read(source.path)
                columns = (source.text,) if source.text is not None else tuple(source.feature_names(table))
                ids = range(1, len(table) + 1) if source.id is None else table.column(source.id)
                lines = {str(name): row for row, name in enumerate(ids)}
                ignored = tuple(name for name in source.ignored() if name in table.columns)
        return cls(dataset, table, columns, lines, ignored)

    @property
    def pictures(self) -> bool:
        """Whether samples are pictures."""
        return self.dataset.kind == "images"

    def picture(self, row: int) -> tuple[bytes, str]:
        """A small picture as the content of a file, and the ending of its name."""
        return encoded(self.dataset.train.features.take(np.array([row]))[0])

    def texts(self, row: int) -> dict[str, str]:
        """The sample's cells by the names of their columns."""
        if self.table is not None:
            place = self.lines[str(self.dataset.train.ids[row])]
            names = (*self.columns[:MOST_CELLS], *self.ignored[:MOST_CELLS])
            return {name: cut(self.table.columns[name][place]) for name in names}
        values = self.dataset.train.features.take(np.array([row]))[0].reshape(-1)[:MOST_CELLS]
        return {f"column {number}": f"{value:.6g}" for number, value in enumerate(values.tolist(), start=1)}


def encoded(pixels: NDArray[Any]) -> tuple[bytes, str]:
    """Pixels as a PNG where they are few, else as a JPEG."""
    from PIL import Image

    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    image.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
    stream = io.BytesIO()
    if max(image.size) <= LOSSLESS_SIDE:
        image.save(stream, "PNG", optimize=True)
        return stream.getvalue(), "png"
    image.save(stream, "JPEG", quality=88)
    return stream.getvalue(), "jpg"


def cut(text: str) -> str:
    """The text, shortened to fit on a page."""
    return text if len(text) <= LONGEST_CELL else text[: LONGEST_CELL - 1] + "…"


FORM: Form = {
    "site": str,
    "class_names": [str],
    "data": {"name": str, "kind": str, "source": str},
    "counts": dict,
    "pictures": {"*": str},
    "texts": {"*": {"*": str}},
    "compared": {"*": [[str]]},
    "ignored?": [str],
    "against?": {"*": {"*": list}},
}
COLUMNS = ("site", "id", "given", "suggested", "score", "p_wrong", "decision")
NEEDED = ("site", "id", "given", "suggested", "p_wrong", "decision")  # audits of version 0.1 have no score
GROUP = "group"  # a further column, where the data has groups
NUMBERS = ("score", "p_wrong")
FEWEST_OF_SITE = 10  # with fewer samples, the label frequencies of a site mean little
FEWEST_OF_CLASS = 5  # with fewer samples at all sites together, no model knows the class

REVIEW, KEEP, TOO_FEW, CANNOT_TELL = "review", "keep", "too few", "cannot tell"


@dataclass(frozen=True, eq=False)
class SiteVerdict:
    """The labels of one site with what the judge says about them, the most suspicious first."""

    site: str
    class_names: tuple[str, ...]
    rows: Integers  # of the training part of the data
    ids: NDArray[Any]
    given: Integers
    suggested: Integers
    score: Floats  # the log-odds that the models give against the label: the order
    p_wrong: (
        Floats  # at least so likely wrong; NaN where it cannot be told, or where there are too few samples to judge
    )
    decision: NDArray[np.str_]
    compared: dict[int, list[list[int]]]  # place -> places of the given class, places of the suggested class
    statement: Statement
    odd: Oddities | None = None  # near-duplicates and outliers; None: not looked for
    groups: NDArray[Any] | None = None  # which samples belong together, where the data says it
    other: Integers | None = None  # the likeliest class besides the given one, also where it is not suggested
    look: NDArray[np.bool_] | None = None  # which labels a budget allows to look at
    # place -> field of a table -> how much it speaks against the label, and what is typical of the given class
    against: dict[int, dict[str, tuple[float, str]]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.given)

    @property
    def flagged(self) -> NDArray[np.bool_]:
        """Which labels are called: a person should look at them."""
        return np.asarray(self.decision == REVIEW)

    def counts(self) -> dict[str, Any]:
        """What the coordinator gets to know about this site."""
        judged = self.decision != TOO_FEW
        return {
            "site": self.site,
            "samples": len(self),
            "judged": int(judged.sum()),
            "to_review": int(self.flagged.sum()),
            **self.statement.as_value(),
        }


def verdicts_of(judged: Judged, claims: Claims | None, threshold: float) -> list[SiteVerdict]:
    """One verdict per site that holds samples; without claims there is only the order."""
    scene = judged.stage.scene
    common = np.bincount(scene.given, minlength=scene.classes) >= FEWEST_OF_CLASS
    return [
        site_verdict(scene, judged, site, claims, number, threshold, common)
        for number, site in enumerate(np.flatnonzero(scene.holdings.sizes).tolist())
    ]


def site_verdict(
    scene: Scene,
    judged: Judged,
    site: int,
    claims: Claims | None,
    number: int,
    threshold: float,
    common: NDArray[np.bool_],
) -> SiteVerdict:
    """The verdict of one site, the `number`th in the claims; `common` are the classes with enough samples to judge."""
    mine = scene.holdings.of(site)
    score, given, other = judged.score[mine], scene.given[mine], judged.other[mine]
    enough = common[given] & (len(given) >= FEWEST_OF_SITE)
    found = np.full(len(given), np.nan) if claims is None else claims.p_wrong[number]
    p_wrong = np.where(enough, found, np.nan)
    told = ~np.isnan(p_wrong)
    flagged = told & (np.nan_to_num(p_wrong) >= threshold)
    order = np.lexsort((-score, ~enough))
    place_of = np.empty(len(order), np.int64)
    place_of[order] = np.arange(len(order))
    worst, near = judged.compared[site]
    compared = {
        int(place_of[sample]): [[int(place_of[one]) for one in side if one >= 0] for side in sides]
        for sample, sides in zip(worst.tolist(), near.tolist(), strict=True)
    }
    rows = scene.holdings.rows[mine]
    decision = np.where(flagged, REVIEW, np.where(told, KEEP, np.where(enough, CANNOT_TELL, TOO_FEW)))
    return SiteVerdict(
        site=scene.site_names[site],
        class_names=scene.data.class_names,
        rows=rows[order],
        ids=scene.dataset.train.ids[rows][order],
        given=given[order],
        suggested=np.where(flagged | (decision == CANNOT_TELL), other, given)[order],
        score=score[order],
        p_wrong=p_wrong[order],
        decision=decision[order],
        compared=compared,
        statement=statement_of(claims, number, scene.data.class_names, given, p_wrong, flagged, enough),
        odd=oddities_of(judged.stage, site).ordered(order),
        groups=None if (groups := scene.dataset.train.groups) is None else groups[rows][order],
        other=other[order],
        against={
            int(place_of[sample]): in_words(*found, scene.dataset.columns)
            for sample, found in judged.evidence.get(site, {}).items()
        },
    )


def write_site(folder: Path, verdict: SiteVerdict, previews: Previews, facts: dict[str, Any]) -> None:
    """Write audit.csv, the previews and site.json of one site."""
    sweep(folder, "audit.csv", "site.json", "report.html")  # temporary files of an audit that was killed
    sweep(folder / "previews")
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "audit.csv", audit_csv(verdict))
    shown = shown_places(verdict, facts.get("seed", 0))
    ids = [str(name) for name in verdict.ids.tolist()]
    names: dict[str, str] = {}
    texts: dict[str, dict[str, str]] = {}
    for place in shown:
        if previews.pictures:
            content, ending = previews.picture(int(verdict.rows[place]))
            names[ids[place]] = f"{place:06d}.{ending}"
            with replacing(folder / "previews" / names[ids[place]], durable=False) as stream:
                stream.write(content)
        else:
            texts[ids[place]] = previews.texts(int(verdict.rows[place]))
    compared = {ids[place]: [[ids[one] for one in side] for side in sides] for place, sides in verdict.compared.items()}
    content_of_site = {
        "format": FORMAT,
        "site": verdict.site,
        "class_names": list(verdict.class_names),
        **facts,
        "counts": verdict.counts(),
        "pictures": names,
        "texts": texts,
        "compared": compared,
        "ignored": list(previews.ignored),
        "against": {ids[place]: fields for place, fields in verdict.against.items() if place in verdict.compared},
        "oddities_known": verdict.odd is not None and verdict.odd.known,
    }
    write_text(folder / "site.json", json.dumps(content_of_site, ensure_ascii=False, allow_nan=False) + "\n")


def lot_of(seed: Any, site: str, name: str, purpose: str = "looks") -> int:
    """A number that depends on seed, site and id alone, so that the same labels are drawn on every machine."""
    return stream_key(int(seed), f"{purpose}/{site}/{name}".encode(errors="replace").decode())


def drawn_first(verdict: SiteVerdict, seed: Any) -> list[int]:
    """The samples at any depth that a draw by lot would take first (`fedwinnow review --anchor`)."""
    judged = np.flatnonzero(verdict.decision != TOO_FEW)
    if not len(judged) or len(verdict.compared) == len(verdict):  # all of them have a preview already
        return []
    stratum = Strata.of(histogram(verdict.score[judged])).places(verdict.score[judged])
    lot = np.array([lot_of(seed, verdict.site, str(name)) for name in verdict.ids[judged].tolist()], dtype=np.uint64)
    order = np.lexsort((lot, stratum))
    start = np.searchsorted(stratum[order], stratum[order])  # where the stratum begins
    first: list[int] = judged[order[np.arange(len(order)) - start < DRAWN_SHOWN]].tolist()
    return first


def shown_places(verdict: SiteVerdict, seed: Any) -> list[int]:
    """The samples that get a preview: the most suspicious, those they are compared with, and those drawn by lot."""
    places = set(verdict.compared) | set(drawn_first(verdict, seed))
    for sides in verdict.compared.values():
        places.update(place for side in sides for place in side)
    return sorted(places)


def audit_csv(verdict: SiteVerdict) -> str:
    """One line per sample, the most suspicious first."""
    names = verdict.class_names
    given, suggested = ([names[label] for label in column.tolist()] for column in (verdict.given, verdict.suggested))
    p_wrong = ["" if math.isnan(value) else f"{value:.6f}" for value in verdict.p_wrong.tolist()]
    columns = [
        [verdict.site] * len(verdict),
        verdict.ids.tolist(),
        given,
        suggested,
        [f"{value:.6g}" for value in verdict.score.tolist()],
        p_wrong,
        verdict.decision.tolist(),
    ]
    further = {} if verdict.groups is None else {GROUP: verdict.groups.tolist()}
    if verdict.other is not None:
        further["other"] = [names[label] for label in verdict.other.tolist()]
    if verdict.look is not None:
        further["look"] = ["yes" if look else "" for look in verdict.look.tolist()]
    if verdict.odd is not None:
        further |= odd_columns(verdict.ids.tolist(), verdict.odd)
    return table_text((*COLUMNS, *further), zip(*columns, *further.values(), strict=True))


def odd_columns(ids: list[Any], odd: Oddities) -> dict[str, list[Any]]:
    """The id of the sample that is almost the same, and whether a sample is far from all others; empty where not."""
    duplicates = ["" if place < 0 else ids[place] for place in odd.duplicate.tolist()]
    return {"near_duplicate": duplicates, "outlier": ["yes" if far else "" for far in odd.outlier.tolist()]}


def read_site(folder: Path) -> dict[str, Any]:
    """The checked content of site.json."""
    path = folder / "site.json"
    if not path.is_file():
        raise DataError(
            f"{folder}: not the folder of an audited site (it has no site.json). `fedwinnow audit` makes one per site, "
            "for example audits/x/site-a."
        )
    content: dict[str, Any] = json_of(path)
    check_format(path, content.get("format"))
    demand(str(path), content, FORM)
    if "judgement" in content:  # its name in version 0.1
        content["judge"] = content.pop("judgement")
    return content


def site_folders(folder: Path) -> list[Path]:
    """The folder of one site, or those of all sites of an audit."""
    if (folder / "site.json").exists():
        return [folder]
    if (folder / "sites.csv").exists():
        found = sorted(path.parent for path in folder.glob("*/site.json"))
        if found:
            return found
    read_site(folder)  # raises an error that names the right folder
    return []


def read_audit(folder: Path, name: str = "audit.csv") -> list[dict[str, str]]:
    """The lines of audit.csv, checked, because a person may have edited the file."""
    path = folder / name
    rows = read_table(path, NEEDED, NUMBERS)
    for number, row in enumerate(rows, start=1):
        row["decision"] = row["decision"].strip()
        if not is_share(row["p_wrong"]) and (row["p_wrong"] or row["decision"] == REVIEW):
            raise DataError(
                f"{path}, row {number} (line {number + 1}): p_wrong is '{row['p_wrong']}'; allowed: a number from 0 to "
                f"1 with a decimal point, or nothing where the label is not to be reviewed. A spreadsheet may have "
                f"changed it."
            )
    return rows


def is_share(text: str) -> bool:
    """Whether the text is a number from 0 to 1."""
    try:
        return 0 <= float(text) <= 1
    except ValueError:
        return False
