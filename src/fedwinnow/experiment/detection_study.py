"""How reliably a run's indicators separate noisy clients from clean ones: fit many mixtures instead of one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedwinnow.errors import DataError, UsageError
from fedwinnow.experiment.evaluation import noisy_ones
from fedwinnow.experiment.result import Result
from fedwinnow.experiment.run_folder import RunFolder
from fedwinnow.mathematics.gaussian_mixture import Covariance, Measure, fit_mixtures
from fedwinnow.mathematics.noisy_clients import prepared
from fedwinnow.metrics.detection import repeated_detection


@dataclass(frozen=True)
class Fitting:
    """How the mixtures of a study are fitted."""

    fits: int = 10_000
    seed: int = 0
    covariance: Covariance = "full"
    measure: Measure = "norm"
    normalise: bool | None = True  # None: as in the run

    def __post_init__(self) -> None:
        if self.fits < 1:
            raise UsageError(f"--fits {self.fits} was given; allowed: 1 or more.")


def study_detection(folder: str | Path, fitting: Fitting | None = None) -> list[dict[str, Any]]:
    """Recall, precision and matching ratio over many mixtures, one row for each round with indicators."""
    result, fitting = Result(folder), fitting or Fitting()
    rounds = [row for row in result.rounds if "indicator" in row]
    if not rounds:
        raise DataError(
            f"{result.folder}: no round has client indicators; only methods that split the clients by them, such as "
            "fednoro, write them."
        )
    if result.scene.true is None:
        raise DataError(f"{result.folder}: the true labels are unknown, so it is not known which clients are noisy.")
    if fitting.normalise is None:
        options = RunFolder(result.folder).settings()["method"]
        fitting = replace(fitting, normalise=bool(options.get("normalise", True)))
    noisy = set(noisy_ones(result.scene.realised))
    return [{"round": row["round"], **score(row, noisy, fitting)} for row in rounds]


def score(row: dict[str, Any], noisy: set[int], fitting: Fitting) -> dict[str, Any]:
    """The figures of one measured round."""
    table = torch.from_numpy(np.array(row["indicator"], dtype=np.float64))  # null becomes NaN
    points = prepared(table, ~table.isnan(), bool(fitting.normalise))
    fitted = fit_mixtures(points, fitting.fits, fitting.seed, covariance=fitting.covariance)
    sets = fitted.larger(fitting.measure).numpy()
    places = [place for place, client in enumerate(row["measured"]) if client in noisy]
    kinds = np.unique(sets, axis=0)
    return {**repeated_detection(sets, places), "fits": fitting.fits, "different_sets": len(kinds)}
