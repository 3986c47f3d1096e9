"""A mixture of two Gaussians on points of several dimensions, fitted from many random starts in one call.

The usual start is that of scikit-learn: two points by k-means++ (the better of two candidates), two-means from there,
then EM. EM depends only on the split it starts from, so each different split is climbed once, and there are few: ten
thousand fits of twenty points take a fraction of a second. Everything is computed in float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedwinnow.randomness import uniforms

Covariance = Literal["full", "diagonal"]
Measure = Literal["norm", "sum"]
Start = Literal["two_means", "points"]
LLOYD_STEPS = 300
BLOCK = 20_000_000  # numbers in memory at once
RELATIVE_FLOOR = 1e-10  # times the variance of the data, so that rounding cannot break a covariance of large numbers


@dataclass(frozen=True, eq=False)
class Mixtures:
    """One mixture per fit: means (fits x 2 x dimensions), weights (fits x 2), and the component of every point."""

    means: Tensor
    weights: Tensor
    second: Tensor  # fits x points: whether the second component claims the point
    likelihood: Tensor  # fits: the mean log-likelihood of a point

    def larger(self, measure: Measure = "norm") -> Tensor:
        """Per fit, the points of the component with the larger mean; no points if one component claims them all."""
        size = self.means.norm(dim=-1) if measure == "norm" else self.means.sum(-1)
        chosen = torch.where((size[:, 1] > size[:, 0]).unsqueeze(1), self.second, ~self.second)
        return chosen & ~chosen.all(1, keepdim=True)


def fit_mixtures(
    points: Tensor,
    fits: int,
    seed: int,
    *,
    covariance: Covariance = "full",
    start: Start = "two_means",
    steps: int = 100,
    tolerance: float = 1e-3,
    regularisation: float = 1e-6,
) -> Mixtures:
    """Fit the points (points x dimensions) `fits` times; fit number f does not depend on how many others there are.

    EM of one fit ends when its mean log-likelihood changes by less than the tolerance. With `start="points"` it begins
    at the two points themselves: it then ends in a good fit less often, but in more different ones.
    """
    points = points.detach().cpu().double()
    floor = regularisation + RELATIVE_FLOOR * float(points.var(0, correction=0).max())
    shape = ClusterShape(covariance, floor)
    size = max(1, BLOCK // (2 * points.numel()))
    pairs, pair_of = torch.unique(starts(points, fits, seed), dim=0, return_inverse=True)
    moves = LLOYD_STEPS if start == "two_means" else 0
    ends = torch.cat([two_means(points, block, moves) for block in torch.split(pairs, size)])
    splits, split_of = torch.unique(ends, dim=0, return_inverse=True)
    found = [climb(points, block, shape, steps, tolerance) for block in torch.split(splits, size)]
    means, weights, second, likelihood = (torch.cat(piece)[split_of[pair_of]] for piece in zip(*found, strict=True))
    return Mixtures(means, weights, second, likelihood)


# --- the start --------------------------------------------------------------------------------------------------------


def starts(points: Tensor, fits: int, seed: int) -> Tensor:
    """Two rows per fit, the smaller first: one at random, one by k-means++ as the better of two candidates."""
    luck = torch.from_numpy(uniforms(seed, "mixture", np.arange(fits)[:, None], np.arange(3)))
    distances = (points.unsqueeze(1) - points).square().sum(-1)
    first = (luck[:, 0] * len(points)).long()
    reach = distances.cumsum(1)[first]
    candidates = torch.searchsorted(reach, luck[:, 1:] * reach[:, -1:], right=True).clamp(max=len(points) - 1)
    left = torch.minimum(distances[first].unsqueeze(1), distances[candidates]).sum(-1)
    second = candidates.gather(1, left.argmin(1, keepdim=True)).squeeze(1)
    return torch.stack([torch.minimum(first, second), torch.maximum(first, second)], 1)


def two_means(points: Tensor, pairs: Tensor, moves: int = LLOYD_STEPS) -> Tensor:
    """Which points (fits x points) belong to the second of two centres, moved from these pairs until they stand still.

    The first centre is the one that holds the first point, so that equal splits have equal rows.
    """
    second = nearer_second(points, points[pairs])
    for _ in range(moves):
        share = shares(second)
        now = nearer_second(points, share @ points / share.sum(-1, keepdim=True).clamp(min=1))
        if torch.equal(now, second):
            break
        second = now
    return second ^ second[:, :1]


def nearer_second(points: Tensor, centres: Tensor) -> Tensor:
    """Which points (fits x points) are nearer to the second of two centres (fits x 2 x dimensions)."""
    distances = (points - centres.unsqueeze(2)).square().sum(-1)
    return distances[:, 1] < distances[:, 0]


def shares(second: Tensor) -> Tensor:
    """A hard split as responsibilities (fits x 2 x points)."""
    return torch.stack([~second, second], 1).double()


# --- EM ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClusterShape:
    """The form of a component's covariance, and the floor that keeps it from vanishing."""

    covariance: Covariance
    floor: float

    def spread(self, points: Tensor, means: Tensor, share: Tensor) -> Tensor:
        """The M step of the covariance, in the form that `log_density` takes: deviations, or a Cholesky factor."""
        away = points - means.unsqueeze(2)
        if self.covariance == "diagonal":
            return ((share.unsqueeze(-1) * away.square()).sum(2) + self.floor).sqrt()
        matrix = (share.unsqueeze(-1) * away).transpose(-1, -2) @ away
        factor: Tensor = torch.linalg.cholesky(matrix + self.floor * torch.eye(points.shape[1], dtype=torch.float64))
        return factor

    def log_density(self, points: Tensor, means: Tensor, spread: Tensor) -> Tensor:
        """The log density of every point under both components: fits x 2 x points."""
        away = points - means.unsqueeze(2)
        if self.covariance == "diagonal":
            squares = (away / spread.unsqueeze(2)).square().sum(-1)
            volume = spread.log().sum(-1)
        else:
            squares = torch.linalg.solve_triangular(spread, away.transpose(-1, -2), upper=False).square().sum(-2)
            volume = spread.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return -0.5 * (squares + points.shape[1] * math.log(2 * math.pi)) - volume.unsqueeze(-1)


def climb(
    points: Tensor, second: Tensor, shape: ClusterShape, steps: int, tolerance: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """EM from hard splits; a fit that has converged stays as it is while the others go on."""
    means, spread, weights = maximised(points, shares(second), shape)
    running = torch.arange(len(second))
    before = torch.full((len(second),), -math.inf, dtype=torch.float64)
    for _ in range(steps):
        share, likelihood = expected(points, means[running], spread[running], weights[running], shape)
        means[running], spread[running], weights[running] = maximised(points, share, shape)
        moving = (likelihood - before).abs() >= tolerance
        running, before = running[moving], likelihood[moving]
        if len(running) == 0:
            break
    share, likelihood = expected(points, means, spread, weights, shape)
    return means, weights, share[:, 1] > share[:, 0], likelihood


def expected(
    points: Tensor, means: Tensor, spread: Tensor, weights: Tensor, shape: ClusterShape
) -> tuple[Tensor, Tensor]:
    """The E step in log space: responsibilities, and the mean log-likelihood of a point."""
    scores = shape.log_density(points, means, spread) + weights.log().unsqueeze(-1)
    total = scores.logsumexp(1, keepdim=True)
    return (scores - total).exp(), total.mean((1, 2))


def maximised(points: Tensor, share: Tensor, shape: ClusterShape) -> tuple[Tensor, Tensor, Tensor]:
    """The M step; an empty component keeps a tiny weight, so that its logarithm exists."""
    held = share.sum(-1) + 10 * torch.finfo(torch.float64).eps
    part = share / held.unsqueeze(-1)
    means = part @ points
    return means, shape.spread(points, means, part), held / held.sum(1, keepdim=True)
