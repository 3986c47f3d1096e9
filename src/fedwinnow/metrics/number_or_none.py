"""What all figures share: one that cannot be computed is None, never 0 and never NaN."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwinnow.randomness import Floats

Values = Sequence[Any] | NDArray[Any]  # anything that NumPy makes a one-dimensional array of
Figure = float | None


def number(value: float) -> Figure:
    """The value, or None where it is no finite number."""
    return float(value) if math.isfinite(value) else None


def count(mask: Values) -> int:
    """How many are true."""
    return int(np.count_nonzero(mask))


def share(part: float, whole: float) -> Figure:
    """One number as a share of another; a share of nothing is undefined."""
    return number(part / whole) if whole else None


def shared_ranks(values: Values) -> Floats:
    """1 for the smallest; equal values share the mean of their places. SciPy's takes a second to import."""
    _, place, size = np.unique(np.asarray(values, np.float64), return_inverse=True, return_counts=True)
    ranks: Floats = (np.cumsum(size) - (size - 1) / 2)[place]
    return ranks


def mean_of(figures: Iterable[Figure]) -> Figure:
    """The mean of those that are defined."""
    defined = [figure for figure in figures if figure is not None]
    return number(float(np.mean(defined))) if defined else None


def found(hits: float, called: float, positives: float, f_score: str = "f1") -> dict[str, Figure]:
    """Precision, recall and their harmonic mean from counts.

    Where there was something to find and nothing was called, precision is undefined but the harmonic mean is 0, as it
    is for somebody who called only wrongly: otherwise saying nothing would beat a bad guess in every average.
    """
    return {
        "precision": share(hits, called),
        "recall": share(hits, positives),
        f_score: share(2 * hits, called + positives) if positives else None,
    }
