"""TensorBoard: event files in the run folder, under `tensorboard/`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedwinnow.errors import missing_extra
from fedwinnow.experiment.trackers.tracker import Tracker


class TensorBoard(Tracker):
    """Curves for TensorBoard, in the run folder: tensorboard --logdir runs"""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise missing_extra("tensorboard", "--track tensorboard") from None
        self.make_writer: Any = SummaryWriter

    def open(self, config: dict[str, Any], done: int) -> None:
        # Rounds after the last checkpoint are played again, so their numbers are deleted.
        self.writer = self.make_writer(str(self.folder / "tensorboard"), purge_step=done + 1 if done else None)
        self.writer.add_text("config", "\n".join(f"    {key} = {value}" for key, value in config.items()))

    def log(self, numbers: dict[str, float], step: int) -> None:
        for key, value in numbers.items():
            self.writer.add_scalar(key, value, step)
        self.writer.flush()

    def close(self, numbers: dict[str, float], status: str) -> None:
        for key, value in numbers.items():
            self.writer.add_scalar(f"summary/{key}", value, int(numbers["rounds"]))
        self.writer.close()
