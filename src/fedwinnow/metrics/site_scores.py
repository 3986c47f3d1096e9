"""How good a model is for one site: its recall of each class, weighted as often as the site meets that class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[Any]  # per class, or per site (row) and class (column)


@dataclass(frozen=True, eq=False)
class SiteScores:
    """Per site: accuracy and balanced accuracy (NaN where there is nothing to measure on), and how much they rest on.

    `rows` is the number of test rows, all of equal weight, that would give as reliable an accuracy: the number of the
    site's own rows where it has some, and fewer than there are where few rows stand for many of the site's samples.
    """

    accuracy: NDArray[np.float64]
    balanced: NDArray[np.float64]
    rows: NDArray[np.int64]


def site_scores(mixture: Counts, tested: Counts, right: Counts) -> SiteScores:
    """The scores under each site's own mixture of classes.

    `mixture` counts how often a site (row) meets a class (column). `tested` counts the test rows of each class, and
    `right` those that the model predicts right; both are per class for all sites, or per site and class. A class
    without test rows is left out of the mixture.
    """
    mixture = np.asarray(mixture, np.float64)
    tested, right = (np.broadcast_to(np.asarray(one, np.float64), mixture.shape) for one in (tested, right))
    measured = (tested > 0) & (mixture > 0)
    recall = np.where(measured, right / np.maximum(tested, 1), 0.0)
    met = np.where(measured, mixture, 0.0)
    total, classes = met.sum(1), measured.sum(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        accuracy = (met * recall).sum(1) / total
        balanced = recall.sum(1) / classes
        # The variance of the weighted mean of recalls, if every row were as uncertain as any other.
        worth = total**2 / np.where(measured, met**2 / np.maximum(tested, 1), 0.0).sum(1)
    rows = np.floor(np.where(total > 0, worth, 0.0) + 1e-9).astype(np.int64)
    return SiteScores(accuracy, balanced, rows)
