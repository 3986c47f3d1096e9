"""Weights & Biases: offline unless the user set WANDB_MODE, so that nothing leaves the machine unasked."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from fedwinnow.errors import missing_extra
from fedwinnow.experiment.trackers.tracker import Tracker


class WeightsAndBiases(Tracker):
    """Weights & Biases, offline in the run folder; WANDB_MODE=online sends it (wandb sync does so later)."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        try:
            import wandb
        except ImportError:
            raise missing_extra("wandb", "--track wandb") from None
        self.library: Any = wandb

    def open(self, config: dict[str, Any], done: int) -> None:
        self.run = self.library.init(
            project=os.environ.get("WANDB_PROJECT", "fedwinnow"),
            name=self.folder.name,
            # The same folder gives the same id, so that a resumed run is one line and not two.
            id=hashlib.sha256(str(self.folder.resolve()).encode()).hexdigest()[:16],
            resume="allow",
            dir=str(self.folder),
            config=config,
            mode=os.environ.get("WANDB_MODE", "offline"),
        )

    def log(self, numbers: dict[str, float], step: int) -> None:
        self.run.log(numbers, step=step)

    def close(self, numbers: dict[str, float], status: str) -> None:
        self.run.summary.update(numbers | {"status": status})
        self.run.finish(exit_code=0 if status == "finished" else 1)
