"""The audit folder: a folder per site that stays on the site, and counts for the coordinator."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwinnow import catalogue
from fedwinnow.auditing.claims import SiteFinding
from fedwinnow.auditing.field_evidence import in_words
from fedwinnow.auditing.judging_models import SiteOpinions
from fedwinnow.auditing.oddities import Oddities, oddities_of
from fedwinnow.auditing.spreadsheet_files import read_table, table_text
from fedwinnow.auditing.statements import NO_FIGURES, SiteFigures, Statement, statement_of
from fedwinnow.data.column import Column
from fedwinnow.data.content_hash import contents_in
from fedwinnow.data.dataset import Dataset
from fedwinnow.data.dicom_pixels import VIEW
from fedwinnow.data.sources.table_source import TableSource
from fedwinnow.data.table_reading import TextTable
from fedwinnow.errors import DataError
from fedwinnow.experiment.prepare import Stage
from fedwinnow.federation.host import Sites
from fedwinnow.files import FORMAT, Form, check_format, demand, json_of, replacing, sweep, write_text
from fedwinnow.mathematics.strata import Strata, histogram
from fedwinnow.randomness import Floats, Integers, stream_key
from fedwinnow.scene.folds import copies_of

LARGEST_SIDE = 256  # pixels
LOSSLESS_SIDE = 64  # pixels; smaller pictures are saved without loss
WHOLE_SIDE = 2048  # pixels: of the pictures that open on a click
WHOLE = "whole"  # the folder and the key of these
FIRST_WHOLE = 200  # so many of the most suspicious have one, and those that may be drawn by lot
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
        return encoded(self.pixels(row), (LARGEST_SIDE * self.windows, LARGEST_SIDE))

    def whole(self, row: int) -> tuple[bytes, str] | None:
        """The picture in the size in which it was read, or None where the small one is just that."""
        pixels = self.pixels(row)
        if pixels.shape[0] <= LARGEST_SIDE and pixels.shape[1] <= LARGEST_SIDE * self.windows:
            return None
        return encoded(pixels, (WHOLE_SIDE * self.windows, WHOLE_SIDE))

    @property
    def windows(self) -> int:
        """How many windows of a scan a picture shows beside each other."""
        return self.dataset.roles.get(VIEW, "").count("+") + 1

    def pixels(self, row: int) -> NDArray[Any]:
        """A picture as it is shown."""
        pixels: NDArray[Any] = self.dataset.train.features.take(np.array([row]))[0]
        return side_by_side(pixels) if self.windows > 1 else pixels

    def texts(self, row: int) -> dict[str, str]:
        """The sample's cells by the names of their columns."""
        if self.table is not None:
            place = self.lines[str(self.dataset.train.ids[row])]
            names = (*self.columns[:MOST_CELLS], *self.ignored[:MOST_CELLS])
            return {name: cut(self.table.columns[name][place]) for name in names}
        values = self.dataset.train.features.take(np.array([row]))[0].reshape(-1)[:MOST_CELLS]
        return {f"column {number}": f"{value:.6g}" for number, value in enumerate(values.tolist(), start=1)}


def side_by_side(pixels: NDArray[Any]) -> NDArray[Any]:
    """The channels of a picture beside each other, because several windows of a scan are no colours."""
    return np.concatenate([pixels[:, :, place] for place in range(pixels.shape[2])], axis=1)[:, :, None]


def encoded(pixels: NDArray[Any], within: tuple[int, int]) -> tuple[bytes, str]:
    """Pixels as a PNG where they are few, else as a JPEG."""
    from PIL import Image

    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    image.thumbnail(within)
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
    f"{WHOLE}?": {"*": str},
    "texts": {"*": {"*": str}},
    "compared": {"*": [[str]]},
    "ignored?": [str],
    "against?": {"*": {"*": list}},
    "copies?": {"*": int},
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
    figures: SiteFigures = NO_FIGURES  # what the statement is made of
    odd: Oddities | None = None  # near-duplicates and outliers; None: not looked for
    copies: dict[str, int] | None = None  # samples of the same content, held out together; None: none is held out
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


@dataclass(frozen=True, eq=False)
class SiteLabels:
    """The labels of one site, in the order of its samples."""

    site: str
    class_names: tuple[str, ...]
    given: Integers
    rows: Integers  # of the training part of the data
    ids: NDArray[Any]
    groups: NDArray[Any] | None = None
    columns: tuple[Column, ...] = ()  # of a table
    oddities: Callable[[], Oddities | None] = lambda: None
    copies: Callable[[], dict[str, int] | None] = lambda: None  # how many samples have the same content

    @classmethod
    def of(cls, stage: Stage, site: int) -> SiteLabels:
        """Those of a site in a simulation."""
        scene = stage.scene
        name, classes, encoded = scene.site_names[site], scene.data.class_names, stage.encoding is not None
        return cls.held(scene.dataset, stage.judged, site, name, classes, encoded=encoded)

    @classmethod
    def held(
        cls, dataset: Dataset, judged: Sites, site: int, name: str, class_names: tuple[str, ...], *, encoded: bool
    ) -> SiteLabels:
        """Those that a site holds; `encoded` if the features of `judged` come from an encoder."""
        mine = judged.holdings.of(site)
        train, rows = dataset.train, judged.holdings.rows[mine]
        return cls(
            site=name,
            class_names=class_names,
            given=judged.given[mine],
            rows=rows,
            ids=train.ids[rows],
            groups=None if train.groups is None else train.groups[rows],
            columns=dataset.columns,
            oddities=lambda: oddities_of(dataset, rows, judged.features if encoded else None),
            copies=lambda: copies_of(contents_in(train.features)[rows], judged.given[mine]),
        )


def verdict_at(
    labels: SiteLabels,
    opinions: SiteOpinions,
    finding: SiteFinding | None,
    p_wrong: Floats,
    threshold: float,
    enough: NDArray[np.bool_],
    look: int | None = None,
) -> SiteVerdict:
    """The verdict of one site; `enough` are the labels that are judged, `look` how many of them are marked."""
    score, given, other = opinions.score, labels.given, opinions.other
    p_wrong = np.where(enough, p_wrong, np.nan)
    told = ~np.isnan(p_wrong)
    flagged = told & (np.nan_to_num(p_wrong) >= threshold)
    order = np.lexsort((-score, ~enough))
    place_of = np.empty(len(order), np.int64)
    place_of[order] = np.arange(len(order))
    compared = {
        int(place_of[sample]): [[int(place_of[one]) for one in side if one >= 0] for side in sides]
        for sample, sides in zip(opinions.worst.tolist(), opinions.near.tolist(), strict=True)
    }
    decision = np.where(flagged, REVIEW, np.where(told, KEEP, np.where(enough, CANNOT_TELL, TOO_FEW)))
    known = np.ones(len(given), bool) if finding is None else finding.known[given]
    figures = SiteFigures(
        judged=int(enough.sum()),
        here=int((enough & known).sum()),
        called=int(flagged.sum()),
        called_p=float(p_wrong[flagged].sum()),
        unknown=tuple(labels.class_names[number] for number in np.unique(given[enough & ~known]).tolist()),
    )
    odd, here = labels.oddities(), enough[order]
    return SiteVerdict(
        site=labels.site,
        class_names=labels.class_names,
        rows=labels.rows[order],
        ids=labels.ids[order],
        given=given[order],
        suggested=np.where(flagged | (decision == CANNOT_TELL), other, given)[order],
        score=score[order],
        p_wrong=p_wrong[order],
        decision=decision[order],
        compared=compared,
        statement=statement_of(finding, figures),
        figures=figures,
        odd=None if odd is None else odd.ordered(order),
        copies=None if finding is None else labels.copies(),
        groups=None if labels.groups is None else labels.groups[order],
        other=other[order],
        look=None if look is None else here & (np.cumsum(here) <= look),
        against={
            int(place_of[sample]): in_words(*found, labels.columns) for sample, found in opinions.evidence.items()
        },
    )


def write_site(folder: Path, verdict: SiteVerdict, previews: Previews, facts: dict[str, Any]) -> None:
    """Write audit.csv, the previews and site.json of one site."""
    sweep(folder, "audit.csv", "site.json", "report.html")  # temporary files of an audit that was killed
    sweep(folder / "previews")
    sweep(folder / WHOLE)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "audit.csv", audit_csv(verdict))
    shown = shown_places(verdict, facts.get("seed", 0))
    ids = [str(name) for name in verdict.ids.tolist()]
    names: dict[str, str] = {}
    wholes: dict[str, str] = {}
    texts: dict[str, dict[str, str]] = {}
    opened = opened_places(verdict, facts.get("seed", 0)) if previews.pictures else set()
    for place in shown:
        row = int(verdict.rows[place])
        if not previews.pictures:
            texts[ids[place]] = previews.texts(row)
            continue
        names[ids[place]] = write_picture(folder / "previews", place, *previews.picture(row))
        if place in opened and (whole := previews.whole(row)) is not None:
            wholes[ids[place]] = write_picture(folder / WHOLE, place, *whole)
    compared = {ids[place]: [[ids[one] for one in side] for side in sides] for place, sides in verdict.compared.items()}
    content_of_site = {
        "format": FORMAT,
        "site": verdict.site,
        "class_names": list(verdict.class_names),
        **facts,
        "counts": verdict.counts(),
        "pictures": names,
        **({WHOLE: wholes} if wholes else {}),
        "texts": texts,
        "compared": compared,
        "ignored": list(previews.ignored),
        "against": {ids[place]: fields for place, fields in verdict.against.items() if place in verdict.compared},
        "oddities_known": verdict.odd is not None and verdict.odd.known,
        **({"copies": verdict.copies} if verdict.copies is not None else {}),
    }
    write_text(folder / "site.json", json.dumps(content_of_site, ensure_ascii=False, allow_nan=False) + "\n")


def write_picture(folder: Path, place: int, content: bytes, ending: str) -> str:
    """Write the picture of a sample; its name in the folder."""
    name = f"{place:06d}.{ending}"
    with replacing(folder / name, durable=False) as stream:
        stream.write(content)
    return name


def opened_places(verdict: SiteVerdict, seed: Any) -> set[int]:
    """The samples whose picture opens in its own size: the first that a person looks at."""
    order = np.argsort(-np.nan_to_num(verdict.score, nan=-np.inf), kind="stable")
    return {int(place) for place in order[:FIRST_WHOLE]} | set(drawn_first(verdict, seed))


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
