"""Telling noisy clients from clean ones by a table of indicators: one row per client, larger means noisier."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from fedwinnow.mathematics.gaussian_mixture import Covariance, Measure, Start, fit_mixtures
from fedwinnow.mathematics.scaling import zero_to_one

Detect = Literal["single", "vote", "careful"]
VOTES = 9
STARTS = 200
COMPARABLE = 1e-3  # with a smaller variance, a component that shrinks around one client would be the likeliest
SMALLEST_RANGE = 1e-12  # a column that varies less is constant


def prepared(table: Tensor, present: Tensor, normalise: bool) -> Tensor:
    """The points to split, from what the clients sent."""
    whole = completed(table, present)
    # A class in which all clients have the same value does not tell them apart.
    return zero_to_one(whole, SMALLEST_RANGE, alike=0.0) if normalise else whole


def completed(table: Tensor, present: Tensor) -> Tensor:
    """The table (clients x classes) with its missing values filled in.

    A client that lacks a class has no wrong label in it, so it gets the smallest value of the class. A class that no
    client has is left out.
    """
    known = torch.where(present, table.double(), torch.inf)
    smallest = known.amin(0)
    return torch.where(present, known, smallest)[:, smallest.isfinite()]


def noisy_set(
    points: Tensor, detect: Detect, *, seed: int, covariance: Covariance | None = None, measure: Measure = "norm"
) -> tuple[Tensor, float]:
    """The noisy clients, and the share of the fitted mixtures that agree on them.

    `single` is one mixture with full covariances; `vote` is what most of nine such mixtures find. `careful` takes the
    likeliest of many mixtures from two kinds of starts, so that it hardly depends on the seed; it has diagonal
    covariances, because few clients are not enough to estimate full ones.
    """
    if not points.shape[1]:  # no client has a value for any class
        return torch.zeros(len(points), dtype=torch.bool), 1.0
    if detect != "careful":
        fits = VOTES if detect == "vote" else 1
        return most_frequent(fit_mixtures(points, fits, seed, covariance=covariance or "full").larger(measure))
    fitted = [
        fit_mixtures(points, STARTS, seed, covariance=covariance or "diagonal", start=start, regularisation=COMPARABLE)
        for start in get_args(Start)
    ]
    sets = torch.cat([some.larger(measure) for some in fitted])
    best = sets[torch.cat([some.likelihood for some in fitted]).argmax()]
    return best, float((sets == best).all(1).double().mean())


def most_frequent(sets: Tensor) -> tuple[Tensor, float]:
    """The set that most fits agree on, of equally frequent ones the earliest, and the share of fits that found it."""
    kinds, kind_of, counts = torch.unique(sets, dim=0, return_inverse=True, return_counts=True)
    earliest = kind_of[counts[kind_of] == counts.max()][0]
    return kinds[earliest], float(counts[earliest]) / len(sets)
