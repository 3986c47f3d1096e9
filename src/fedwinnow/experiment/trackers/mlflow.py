"""MLflow: a store in the run folder, under `mlruns/`, unless the user set MLFLOW_TRACKING_URI."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fedwinnow.errors import missing_extra
from fedwinnow.experiment.trackers.tracker import Tracker

STATUS = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}


class MLflow(Tracker):
    """MLflow, stored in the run folder; MLFLOW_TRACKING_URI sends it to a server."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        try:
            import mlflow
        except ImportError:
            raise missing_extra("mlflow", "--track mlflow") from None
        self.library: Any = mlflow

    def open(self, config: dict[str, Any], done: int) -> None:
        if "MLFLOW_TRACKING_URI" not in os.environ:
            self.library.set_tracking_uri((self.folder / "mlruns").resolve().as_uri())
        known = self.folder / "mlflow-run.txt"
        if done and known.exists():
            self.library.start_run(run_id=known.read_text(encoding="utf-8").strip())
            return
        self.library.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", "fedwinnow"))
        run = self.library.start_run(run_name=self.folder.name)
        self.library.log_params(config)
        known.write_text(run.info.run_id + "\n", encoding="utf-8")

    def log(self, numbers: dict[str, float], step: int) -> None:
        self.library.log_metrics(numbers, step=step)

    def close(self, numbers: dict[str, float], status: str) -> None:
        self.library.log_metrics({f"summary.{key}": value for key, value in numbers.items()})
        self.library.end_run(STATUS[status])
