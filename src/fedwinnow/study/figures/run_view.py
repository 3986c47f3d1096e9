"""What a picture of runs needs from their folders."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from fedwinnow.data.source_files import read_npz
from fedwinnow.errors import DataError
from fedwinnow.experiment.result import Result
from fedwinnow.randomness import Floats, Integers
from fedwinnow.scene.scene import Scene
from fedwinnow.study.run_records import Record
from fedwinnow.study.table_layout import varies


class View:
    """One run, whose files are read when they are needed."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.result = Result(record.folder)

    @property
    def name(self) -> str:
        """The method with its options."""
        return self.record.settings["method"]

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


def by_name(views: Sequence[View]) -> dict[str, list[View]]:
    """Runs grouped by method, and by scene settings if these differ; a group has one run per seed."""
    keys = [key for key in ("data", "partition", "noise") if varies([view.record for view in views], key)]
    found: dict[str, list[View]] = {}
    for view in views:
        place = ", ".join(view.record.settings.get(key, "") for key in keys)
        found.setdefault(f"{view.name} | {place}" if keys else view.name, []).append(view)
    return found
