"""`fedwinnow detection`: how reliably noisy clients were found."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from fedwinnow.commands.common import Flags, escaped
from fedwinnow.errors import UsageError

Folders = Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]


@dataclass(frozen=True)
class Detection(Flags):
    """Split the clients of finished runs again, with many mixtures: recall, precision and matching ratio.

    The matching ratio is the share of mixtures that find exactly the noisy clients. A run of fednoro keeps the
    indicators of its clients; with measure_every=1 it does so in every round of its first stage.
    """

    folders: Folders = ()
    """Run folders."""
    fits: int = 10_000
    """How many mixtures, each from another start."""
    seed: int = 0
    """The same seed gives the same starts."""
    covariance: Literal["full", "diagonal"] = "full"
    """The form of the components."""
    measure: Literal["norm", "sum"] = "norm"
    """The noisy component is the one with the larger norm, or sum, of its mean."""
    raw: bool = False
    """Do not map the indicators to 0..1 first."""

    def run(self) -> int:
        """Fit and show a table."""
        from fedwinnow.experiment.detection_study import Fitting, study_detection

        if not self.folders:
            raise UsageError("no run folder was given; allowed: one or more, for example runs/fednoro-digits-0.")
        fitting = Fitting(self.fits, self.seed, self.covariance, self.measure, not self.raw)
        rows = [{"folder": str(folder), **row} for folder in self.folders for row in study_detection(folder, fitting)]
        self.emit(rows)
        self.show(rows)
        return 0

    def show(self, rows: list[dict[str, object]]) -> None:
        """Print the rows as a table, in per cent."""
        from fedwinnow.terminal import Grid

        lines = []
        for row in rows:
            figures = [row[name] for name in ("recall", "precision", "matching_ratio")]
            cells = [f"{100 * value:.2f}" if isinstance(value, float) else "-" for value in figures]
            lines.append((escaped(row["folder"]), str(row["round"]), *cells, str(row["different_sets"])))
        titles = ("run", "round", "recall", "precision", "matching ratio", "different sets")
        Grid("tnnnnn", titles, lines, names=2).show(self.console())
