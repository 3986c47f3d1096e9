"""A mixture of two Gaussians on numbers, for every method that tells small losses (clean) from large ones (wrong).

Nothing is drawn at random: the fit starts from the 20th and 80th percentile, or from a mixture that is given.
Everything is computed in float64, on the device of the values where that device has float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypedDict

import torch
from torch import Tensor
from torch.nn import functional

SMALLEST_RANGE = 1e-8  # values that lie closer together count as equal
SMALLEST_GAP = 1e-8  # two means that lie closer together are one component
LARGEST = 1e100  # the square of a larger number could overflow float64; such a number counts as infinite
EMPTY_BELOW = 0.5  # a component that holds less than half a sample counts as empty
LLOYD_STEPS = 100


class MixtureOptions(TypedDict, total=False):
    """Options of `fit_two_gaussians`, for callers that collect them first."""

    start: TwoGaussians | None
    steps: int
    tolerance: float
    variance_floor: float
    weight_floor: float
    normalise: bool


@dataclass(frozen=True, eq=False)
class TwoGaussians:
    """Means, variances and weights of two components; the component with the smaller mean comes first.

    A collapsed mixture could not tell two components apart: its two means are equal, and it takes every value for low.
    """

    means: Tensor
    variances: Tensor
    weights: Tensor
    collapsed: bool
    normalise: bool = False

    @classmethod
    def from_flat(cls, flat: Tensor) -> TwoGaussians:
        """From six numbers, as `flat` gives them or as the average of several mixtures has them."""
        means, variances, weights = by_mean(exact(flat).reshape(3, 2))
        # Written this way round so that a gap of NaN collapses too.
        return cls(means, variances, weights, collapsed=not means[1] - means[0] >= SMALLEST_GAP)

    @property
    def flat(self) -> Tensor:
        """Six numbers that can be sent: both means, both variances, both weights, the low component first."""
        return torch.stack([self.means, self.variances, self.weights]).flatten()

    def p_low(self, values: Tensor) -> Tensor:
        """The probability of the low component, in float64; the values may be another site's.

        The values are prepared as those of the fit were, so give all values of a site at once if they are normalised.
        """
        if values.numel() == 0:
            return exact(values)
        data, spread = prepared(values, self.normalise)
        means = self.means.to(data.device)
        if self.collapsed or (self.normalise and spread < SMALLEST_RANGE):  # equal values cannot be scaled to 0..1
            p_low = torch.ones_like(data)
        else:
            scores = log_densities(data, torch.stack([means, self.variances.to(means), self.weights.to(means)]))
            p_low = torch.sigmoid(scores[0] - scores[1])
        return p_low if p_low.device == values.device else p_low.float().to(values.device)


@dataclass(frozen=True)
class Limits:
    """The smallest variance and weight of a component, so that it cannot vanish."""

    variance_floor: float
    weight_floor: float


def fit_two_gaussians(
    values: Tensor,
    *,
    start: TwoGaussians | None = None,
    steps: int = 100,
    tolerance: float = 1e-3,
    variance_floor: float = 1e-6,
    weight_floor: float = 1e-3,
    normalise: bool = False,
) -> TwoGaussians:
    """Fit the values of one site by EM.

    EM stops when the mean log-likelihood changes by less than the tolerance. `normalise` maps the values to 0..1 first.
    """
    if values.numel() == 0:
        values = values.new_zeros(1)
    data, spread = prepared(values, normalise)
    limits = Limits(variance_floor, weight_floor)
    parameters = by_mean(climb(data, first_parameters(data, start, limits), limits, steps, tolerance))
    share, _ = posteriors(data, parameters)
    gap = parameters[0, 1] - parameters[0, 0]
    sound = len(data) >= 2 and spread >= SMALLEST_RANGE and (share.sum(-1) >= EMPTY_BELOW).all() and gap >= SMALLEST_GAP
    means, variances, weights = parameters if sound else one_gaussian(data, limits)
    return TwoGaussians(means, variances, weights, collapsed=not sound, normalise=normalise)


# --- the values -----------------------------------------------------------------------------------------------------


def exact(values: Tensor) -> Tensor:
    """The values in float64; Apple's GPU has no float64, so there the computation moves to the processor."""
    values = values.detach()
    return values.to("cpu" if values.device.type == "mps" else values.device, torch.float64)


def prepared(values: Tensor, normalise: bool) -> tuple[Tensor, Tensor]:
    """The values as they are fitted, and their range; NaN and infinity count as the largest finite value."""
    data = exact(values)
    finite = data.abs() <= LARGEST  # false for NaN
    largest = torch.where(finite, data, -math.inf).amax()
    data = torch.where(finite, data, torch.where(largest.isfinite(), largest, 0.0))
    low = data.amin()
    spread = data.amax() - low
    if normalise:
        data = (data - low) / spread.clamp(min=SMALLEST_RANGE)
    return data, spread


def quantile(ascending: Tensor, share: float) -> Tensor:
    """The quantile, interpolated between two values; torch.quantile takes at most 16 million values."""
    place = ascending.new_tensor((len(ascending) - 1) * share)
    return torch.lerp(ascending[int(place.floor())], ascending[int(place.ceil())], place - place.floor())


# --- the fit: parameters are a 3 x 2 table, that is means, variances and weights of two components ------------------


def by_mean(parameters: Tensor) -> Tensor:
    """The component with the smaller mean first."""
    return parameters.flip(-1) if parameters[0, 0] > parameters[0, 1] else parameters


def log_densities(data: Tensor, parameters: Tensor) -> Tensor:
    """The logarithm of weight times density: one row per component."""
    means, variances, weights = parameters.unsqueeze(-1).unbind()
    distance = (data - means).square() / variances
    return weights.log() - 0.5 * ((2 * math.pi * variances).log() + distance)


def posteriors(data: Tensor, parameters: Tensor) -> tuple[Tensor, Tensor]:
    """The E step: how much each component holds of every value, and the mean log-likelihood."""
    scores = log_densities(data, parameters)
    low = torch.sigmoid(scores[0] - scores[1])
    return torch.stack([low, 1 - low]), torch.logaddexp(scores[0], scores[1]).sum() / len(data)


def maximised(data: Tensor, share: Tensor, before: Tensor | None, limits: Limits) -> Tensor:
    """The M step; a component that holds nothing at all stays where it was."""
    held = share.sum(-1)
    weighable = held.clamp(min=1e-100)
    means = (share * data).sum(-1) / weighable
    if before is not None:
        means = torch.where(held > 1e-100, means, before[0])
    variances = (share * (data - means.unsqueeze(-1)).square()).sum(-1) / weighable
    low = held[0] / held.sum().clamp(min=1e-100)
    return torch.stack([means, variances.clamp(min=limits.variance_floor), weights_from(low, limits)])


def weights_from(low: Tensor, limits: Limits) -> Tensor:
    """Both weights from the weight of the low component; neither is below the floor."""
    low = low.clamp(limits.weight_floor, 1 - limits.weight_floor)
    return torch.stack([low, 1 - low])


def climb(data: Tensor, parameters: Tensor, limits: Limits, steps: int, tolerance: float) -> Tensor:
    """E and M steps until the mean log-likelihood changes by less than the tolerance."""
    previous = torch.tensor(-math.inf, dtype=torch.float64, device=data.device)
    for _ in range(steps):
        share, likelihood = posteriors(data, parameters)
        parameters = maximised(data, share, parameters, limits)
        if not (likelihood - previous).abs() >= tolerance:  # also where the likelihood is NaN
            break
        previous = likelihood
    return parameters


def first_parameters(data: Tensor, start: TwoGaussians | None, limits: Limits) -> Tensor:
    """The parameters of the given start; EM cannot climb from a collapsed one, so that is replaced."""
    if start is None or start.collapsed:
        return quantile_start(data, limits)
    means, variances = start.means.to(data.device), start.variances.to(data.device)
    weights = weights_from(start.weights.to(data.device)[0], limits)
    return torch.stack([means, variances.clamp(min=limits.variance_floor), weights])


def quantile_start(data: Tensor, limits: Limits) -> Tensor:
    """Means at the 20th and 80th percentile, moved until the split halfway between them stands still (two-means).

    Without the moving, a site with few wrong labels would start with both means among its clean values and stay there.
    """
    count, ascending = len(data), data.sort().values
    border = (quantile(ascending, 0.2) + quantile(ascending, 0.8)) / 2
    sums = functional.pad(ascending.cumsum(0), (1, 0))
    below = 0
    for _ in range(LLOYD_STEPS):
        now = min(max(int(torch.searchsorted(ascending, border, right=True)), 1), max(count - 1, 1))
        if now == below:
            break
        below = now
        border = (sums[below] / below + (sums[-1] - sums[below]) / max(count - below, 1)) / 2
    is_low = data <= ascending[below - 1]
    return maximised(data, torch.stack([is_low, ~is_low]).double(), None, limits)


def one_gaussian(data: Tensor, limits: Limits) -> Tensor:
    """A single Gaussian, written as two equal components of which the first has the whole weight."""
    mean = data.sum() / len(data)
    variance = ((data - mean).square().sum() / len(data)).clamp(min=limits.variance_floor)
    one = torch.ones_like(mean)
    return torch.stack([mean, mean, variance, variance, one, torch.zeros_like(one)]).reshape(3, 2)
