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
COMPARABLE = 1e-3  # a smaller variance would let a component of one client win by shrinking to nothing
SMALLEST_RANGE = 1e-12  # a column that varies less is constant


def prepared(table: Tensor, present: Tensor, normalise: bool) -> Tensor:
    """The points that are to be split, from what the clients sent."""
    whole = completed(table, present)
    # a class in which all are alike tells nothing about them
    return zero_to_one(whole, SMALLEST_RANGE, alike=0.0) if normalise else whole


def completed(table: Tensor, present: Tensor) -> Tensor:
    """The table (clients x classes) without holes: a client lacks a class, so it has no wrong label in it.

    What is missing is therefore the smallest value of the class; a class that nobody has is left out.
    """
    known = torch.where(present, table.double(), torch.inf)
    smallest = known.amin(0)
    return torch.where(present, known, smallest)[:, smallest.isfinite()]


def noisy_set(
    points: Tensor, detect: Detect, *, seed: int, covariance: Covariance | None = None, measure: Measure = "norm"
) -> tuple[Tensor, float]:
    """The noisy clients, and the share of the fitted mixtures that agree on them.

    `single` is one mixture with full covariances, as the plain words "a Gaussian mixture" mean it; `vote` is what most
    of nine of them find. `careful` takes the likeliest of many from two kinds of starts, so that luck hardly moves it,
    and has diagonal covariances: a full one has more numbers than few clients can tell.
    """
    if not points.shape[1]:  # nobody has said anything about any class
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
