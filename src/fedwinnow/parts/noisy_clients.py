"""Telling noisy clients from clean ones by a table of indicators: one row per client, larger means noisier."""

from __future__ import annotations

import torch
from torch import Tensor

from fedwinnow.parts.mixture import Covariance, Measure, fit_mixtures

SMALLEST_RANGE = 1e-12  # a column that varies less is constant


def completed(table: Tensor, present: Tensor) -> Tensor:
    """The table (clients x classes) without holes: a client lacks a class, so it has no wrong label in it.

    What is missing is therefore the smallest value of the class; a class that nobody has is left out.
    """
    known = torch.where(present, table.double(), torch.inf)
    smallest = known.amin(0)
    return torch.where(present, known, smallest)[:, smallest.isfinite()]


def zero_to_one(table: Tensor) -> Tensor:
    """Every column mapped to 0..1; one that does not vary tells nothing and becomes 0."""
    low, high = table.amin(0), table.amax(0)
    varies = high - low > SMALLEST_RANGE
    return torch.where(varies, (table - low) / torch.where(varies, high - low, 1.0), 0.0)


def noisy_sets(
    table: Tensor,
    present: Tensor,
    *,
    fits: int,
    seed: int,
    normalise: bool = True,
    covariance: Covariance = "full",
    measure: Measure = "norm",
) -> Tensor:
    """The noisy clients (fits x clients) by so many mixtures, each from another start."""
    whole = completed(table, present)
    points = zero_to_one(whole) if normalise else whole
    return fit_mixtures(points, fits, seed, covariance=covariance).larger(measure)


def most_frequent(sets: Tensor) -> tuple[Tensor, float]:
    """The set that most fits agree on, of equally frequent ones the earliest, and the share of fits that found it."""
    kinds, kind_of, counts = torch.unique(sets, dim=0, return_inverse=True, return_counts=True)
    earliest = kind_of[counts[kind_of] == counts.max()][0]
    return kinds[earliest], float(counts[earliest]) / len(sets)
