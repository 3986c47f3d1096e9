"""What a picture of runs needs from their folders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from fedwinnow.data.source_files import read_npz
from fedwinnow.errors import DataError, unknown
from fedwinnow.experiment.result import Result
from fedwinnow.method_names import title_of
from fedwinnow.randomness import Floats, Integers
from fedwinnow.scene.scene import Scene
from fedwinnow.study.arrangement import label, varies
from fedwinnow.study.method_styles import DASHES, MethodStyle, method_styles
from fedwinnow.study.run_records import Record
from fedwinnow.study.scene_words import scene_in_words


class View:
    """One run, whose files are read when they are needed."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.result = Result(record.folder)

    @property
    def name(self) -> str:
        """The method in print, with its options, or the name that a sweep gave."""
        return title_of(self.row)

    @property
    def row(self) -> str:
        """The name of its row in a table: that in its sweep, or the method with its options."""
        return self.record.row or self.record.settings["method"]

    @property
    def label(self) -> str:
        """The method and the seed, for pictures of single runs."""
        return f"{self.name}, seed {self.record.seed}"

    @cached_property
    def rounds(self) -> list[dict[str, Any]]:
        """One dictionary per round."""
        return self.result.rounds

    @cached_property
    def scene(self) -> Scene:
        """The scene; its true labels may be unknown."""
        return self.result.scene

    @property
    def true(self) -> Integers:
        """The true labels."""
        if self.scene.true is None:
            raise self.lacks_truth()
        return self.scene.true

    @property
    def realised(self) -> Floats:
        """The share of wrong labels of every client."""
        if self.scene.true is None:
            raise self.lacks_truth()
        return self.scene.realised

    @property
    def wrong(self) -> Any:
        """Which labels are wrong."""
        return self.scene.given != self.true

    def lacks_truth(self) -> DataError:
        """The error for a picture that needs unknown true labels."""
        return DataError(f"{self.record.folder}: this picture needs the true labels, which are unknown here.")

    @cached_property
    def verdicts(self) -> dict[str, Any]:
        """p_wrong, suggested and loss of every sample at the end of the run."""
        path = self.record.folder / "verdicts.npz"
        if not path.exists():
            raise DataError(f"{path}: there is no such file; runs of earlier versions, and broken ones, have none.")
        try:
            stored = read_npz(path)
            return {name: stored[name] for name in ("p_wrong", "suggested", "loss")}
        except (DataError, KeyError):
            raise DataError(
                f"{path}: not the verdicts of a run, or a damaged file. Play the run again, into another folder."
            ) from None

    def column(self, key: str) -> tuple[Floats, Floats]:
        """Rounds and values of one column of rounds.jsonl."""
        return self.result.curve(key)

    def of(self, client: int) -> slice:
        """Where a client's samples are."""
        return self.scene.holdings.of(client)


def on_one_scene(views: Sequence[View]) -> list[View]:
    """The runs on the scene of the first run, which can be compared sample by sample."""
    return [view for view in views if view.record.scene == views[0].record.scene]


@dataclass
class Group:
    """Runs that differ only in their seeds: one line of a picture."""

    row: str  # the method, as in a table
    label: str
    views: list[View]
    style: MethodStyle
    place: int  # the number of the scene

    @property
    def line(self) -> dict[str, Any]:
        """Colour, dashes and mark for matplotlib."""
        return {"color": self.style.colour, "linestyle": self.style.dashes, "marker": self.style.mark}

    @property
    def marks(self) -> dict[str, Any]:
        """Colour and mark for matplotlib, without a line."""
        return {"color": self.style.colour, "linestyle": "", "marker": self.style.mark}


def groups(views: Sequence[View]) -> list[Group]:
    """Runs by method, and by scene if there are several; a method's colour is the same everywhere.

    With several scenes the dashes tell the scenes apart; otherwise they are the method's own.
    """
    keys = [key for key in ("data", "clients", "partition", "noise") if varies([view.record for view in views], key)]
    styles = method_styles(view.row for view in views)
    places: dict[str, int] = {}
    found: dict[tuple[str, str], Group] = {}
    for view in views:
        place = scene_in_words(label(view.record, keys)) if keys else ""
        number = places.setdefault(place, len(places))
        if (view.row, place) not in found:
            style = styles[view.row]
            if keys:
                style = replace(style, dashes=DASHES[number % len(DASHES)])
            words = f"{title_of(view.row)}, {place}" if place else title_of(view.row)
            found[view.row, place] = Group(view.row, words, [], style, number)
        found[view.row, place].views.append(view)
    return list(found.values())


def in_order(views: Sequence[View], order: Sequence[str]) -> list[View]:
    """The runs of the named methods first, in this order; a name is that of a row, as in the files or in print."""
    names = {name: row for view in views for row in (view.row,) for name in (title_of(row), row)}
    for name in order:
        if name not in names:
            raise unknown("method for --order", name, names)
    rows = [names[name] for name in order]
    return sorted(views, key=lambda view: rows.index(view.row) if view.row in rows else len(rows))
