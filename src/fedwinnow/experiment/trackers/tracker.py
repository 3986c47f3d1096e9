"""A tracker sends the numbers of a run to a dashboard. A new tracker has three functions: open, log and close."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from fedwinnow.errors import UsageError, unknown
from fedwinnow.experiment.play import Watcher
from fedwinnow.experiment.prepare import Stage
from fedwinnow.experiment.run_folder import flatten
from fedwinnow.experiment.summary import config_of

GROUP = "fedwinnow.trackers"
OURS = [
    EntryPoint("tensorboard", "fedwinnow.experiment.trackers.tensorboard:TensorBoard", GROUP),
    EntryPoint("wandb", "fedwinnow.experiment.trackers.wandb:WeightsAndBiases", GROUP),
    EntryPoint("mlflow", "fedwinnow.experiment.trackers.mlflow:MLflow", GROUP),
]


class Tracker(Watcher):
    """The base of every tracker; it is made before the run starts, so that a missing library is an error at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def open(self, config: dict[str, Any], done: int) -> None:
        """Begin, or continue after `done` rounds; `config` has the settings of config.toml with dotted keys."""

    @abstractmethod
    def log(self, numbers: dict[str, float], step: int) -> None:
        """Log the numbers of one round."""

    @abstractmethod
    def close(self, numbers: dict[str, float], status: str) -> None:
        """End: `finished` with the numbers of the summary, or `failed` or `interrupted` without numbers."""

    def started(self, stage: Stage, done: int, rounds: int) -> None:
        self.open(flatten(config_of(stage)), done)

    def round(self, row: dict[str, Any]) -> None:
        self.log({key: value for key, value in numbers_in(row).items() if key != "round"}, row["round"])

    def finished(self, summary: dict[str, Any]) -> None:
        self.close(numbers_in(summary), "finished")

    def stopped(self, status: str) -> None:
        self.close({}, status)


def numbers_in(table: dict[str, Any]) -> dict[str, float]:
    """The numbers of a nested table by dotted key, without lists, texts and null."""
    flat = flatten(table)
    return {key: float(value) for key, value in flat.items() if isinstance(value, int | float)}


def make_trackers(names: str | Sequence[str] | None, folder: Path) -> tuple[Tracker, ...]:
    """The trackers of these names, given as one text with commas or as a list."""
    words = (names or "").split(",") if isinstance(names, str | None) else names
    return tuple(find_tracker(word.strip())(folder) for word in words if word.strip())


def find_tracker(name: str) -> type[Tracker]:
    """The tracker of this name, from fedwinnow or from an installed package."""
    known = {point.name: point for point in [*entry_points(group=GROUP), *OURS]}
    if name not in known:
        raise unknown("tracker", name, known)
    found = known[name].load()
    if not (isinstance(found, type) and issubclass(found, Tracker)):
        raise UsageError(f"the installed tracker '{name}' ({known[name].value}) does not derive from Tracker.")
    return found
