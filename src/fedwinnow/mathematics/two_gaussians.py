"""A mixture of two Gaussians on numbers, for every method that tells small losses (clean) from large ones (wrong).

There is no luck in it: the start comes from the 20th and 80th percentile, and many sites are fitted in one call. Sites
with equally many values get the same bits as one by one. Everything is computed in float64, on the device of the values
where that device knows float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypedDict, Unpack

import torch
from torch import Tensor
from torch.nn import functional

SMALLEST_RANGE = 1e-8  # values that lie closer together are one value
SMALLEST_GAP = 1e-8  # means that lie closer together are one component
LARGEST = 1e100  # squares of larger numbers could leave float64; they count as infinite
EMPTY_BELOW = 0.5  # a component that holds less than half a sample holds nothing
LLOYD_STEPS = 100
LOOK = 8  # steps on a GPU between two looks whether all rows have stopped


class MixtureOptions(TypedDict, total=False):
    """What `fit_two_gaussians` hands on to `fit_many`; the defaults are there."""

    start: TwoGaussians | None
    steps: int
    tolerance: float
    variance_floor: float
    weight_floor: float
    normalise: bool
    guard_bic: bool
    monotone: bool


@dataclass(frozen=True, eq=False)
class TwoGaussians:
    """One mixture (means of shape 2) or one per site (sites x 2); the component with the smaller mean comes first.

    A collapsed mixture could not tell two components apart and takes every value for low: its two means are equal.
    """

    means: Tensor
    variances: Tensor
    weights: Tensor
    collapsed: Tensor  # true or false, one per mixture
    normalise: bool = False
    monotone: bool = False

    @classmethod
    def from_flat(cls, flat: Tensor, *, normalise: bool = False, monotone: bool = False) -> TwoGaussians:
        """From six numbers (or sites x 6), as they come out of `flat` or out of an average of several."""
        parameters = by_mean(exact(flat).reshape(*flat.shape[:-1], 3, 2))
        means, variances, weights = parameters.unbind(-2)
        # Written this way round because a gap that is no number collapses too.
        collapsed = ~(means[..., 1] - means[..., 0] >= SMALLEST_GAP)
        return cls(means, variances, weights, collapsed, normalise, monotone)

    @property
    def flat(self) -> Tensor:
        """Six numbers that may travel: both means, both variances, both weights, the low component first."""
        return torch.stack([self.means, self.variances, self.weights], -2).flatten(-2)

    def __getitem__(self, site: int | Tensor) -> TwoGaussians:
        """The mixture of one site, or those of several."""
        return replace(
            self,
            means=self.means[site],
            variances=self.variances[site],
            weights=self.weights[site],
            collapsed=self.collapsed[site],
        )

    def p_low(self, values: Tensor, lengths: Tensor | None = None) -> Tensor:
        """The probability of the low component, in float64, under these parameters: the values may be another site's.

        The values are prepared as those of the fit were, so give all of a site at once where they are normalised.
        """
        if values.numel() == 0:
            return exact(values)
        data, _, spread = prepared(values, lengths, self.normalise)
        means = self.means.to(data.device)
        scores = log_densities(data, torch.stack([means, self.variances.to(means), self.weights.to(means)], -2))
        p_low = each_row(torch.sigmoid, scores[..., 0, :] - scores[..., 1, :])
        surely = self.collapsed.to(data.device).unsqueeze(-1)
        if self.normalise:
            surely = surely | (spread < SMALLEST_RANGE).unsqueeze(-1)  # equal values have no place between 0 and 1
        if self.monotone:
            surely = surely | (data < means[..., :1])
        p_low = torch.where(surely, 1.0, p_low)
        return p_low if p_low.device == values.device else p_low.float().to(values.device)


def fit_two_gaussians(values: Tensor, **options: Unpack[MixtureOptions]) -> TwoGaussians:
    """Fit one site's values; the options are those of `fit_many`."""
    return fit_many(values.unsqueeze(0), **options)[0]


def fit_many(
    values: Tensor,
    lengths: Tensor | None = None,
    *,
    start: TwoGaussians | None = None,
    steps: int = 100,
    tolerance: float = 1e-3,
    variance_floor: float = 1e-6,
    weight_floor: float = 1e-3,
    normalise: bool = False,
    guard_bic: bool = False,
    monotone: bool = False,
) -> TwoGaussians:
    """Fit every row of `values` (sites x longest) by itself; row k has `lengths[k]` values, the rest is padding.

    `start` is one mixture for all rows or one per row; `tolerance` is on the mean log-likelihood. `normalise` maps
    each row to 0..1. `guard_bic` collapses a row that one Gaussian explains better; `monotone` takes everything below
    the low mean for low.
    """
    if values.shape[-1] == 0:
        values, lengths = functional.pad(values, (0, 1)), torch.zeros(len(values), dtype=torch.int64)
    data, present, spread = prepared(values, lengths, normalise)
    limits = Limits(variance_floor, weight_floor)
    first = first_parameters(data, present, start, limits)
    parameters = by_mean(climb(data, present, first, limits, steps, tolerance))
    share, likelihood = posteriors(data, present, parameters)
    single, single_likelihood = one_gaussian(data, present, limits)
    count, gap = present.sum(-1), parameters[:, 0, 1] - parameters[:, 0, 0]
    sound = (count >= 2) & (spread >= SMALLEST_RANGE) & (share.sum(-1) >= EMPTY_BELOW).all(-1) & (gap >= SMALLEST_GAP)
    if guard_bic:
        # Five free parameters against two; the likelihoods are means per value.
        sound &= 2 * count * (likelihood - single_likelihood) > (5 - 2) * count.double().log()
    parameters = torch.where(sound[:, None, None], parameters, single)
    means, variances, weights = parameters.unbind(-2)
    return TwoGaussians(means, variances, weights, ~sound, normalise, monotone)


@dataclass(frozen=True)
class Limits:
    """What keeps a component from vanishing."""

    variance_floor: float
    weight_floor: float


# --- the values -----------------------------------------------------------------------------------------------------


def exact(values: Tensor) -> Tensor:
    """The values in float64; Apple's GPU has none, so there the computation moves to the processor."""
    values = values.detach()
    return values.to("cpu" if values.device.type == "mps" else values.device, torch.float64)


def prepared(values: Tensor, lengths: Tensor | None, normalise: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The values as they are fitted (0 in the padding), which of them are no padding, and the range of each row."""
    data = exact(values)
    present = torch.ones_like(data, dtype=torch.bool)
    if lengths is not None:
        present = torch.arange(data.shape[-1], device=data.device) < lengths.to(data.device).unsqueeze(-1)
    finite = present & (data.abs() <= LARGEST)  # false for what is no number
    largest = torch.where(finite, data, -math.inf).amax(-1, keepdim=True)
    data = torch.where(finite, data, torch.where(largest.isfinite(), largest, 0.0))
    low = torch.where(present, data, math.inf).amin(-1, keepdim=True)
    spread = torch.where(present, data, -math.inf).amax(-1, keepdim=True) - low
    if normalise:
        data = (data - low) / spread.clamp(min=SMALLEST_RANGE)
    return torch.where(present, data, 0.0), present, spread.squeeze(-1)


def padded_last(data: Tensor, present: Tensor) -> Tensor:
    """Each row in ascending order, its padding at the end as infinity."""
    return torch.where(present, data, math.inf).sort(-1).values


def quantile(ascending: Tensor, count: Tensor, share: float) -> Tensor:
    """The quantile of each row, between two values in proportion; torch's own stops at 16 million values."""
    place = (count - 1).clamp(min=0).double() * share
    below = place.floor().long().unsqueeze(-1)
    above = place.ceil().long().unsqueeze(-1)
    # Views of one tensor: for numbers that lie apart torch has one way of computing, however many there are.
    lower, upper = ascending.gather(-1, torch.cat([below, above], -1)).unbind(-1)
    return torch.lerp(lower, upper, place - place.floor())


# --- the fit: parameters are (sites, 3, 2), that is means, variances and weights of two components ------------------


def by_mean(parameters: Tensor) -> Tensor:
    """The component with the smaller mean first."""
    swapped = parameters[..., :1, :1] > parameters[..., :1, 1:]
    return torch.where(swapped, parameters.flip(-1), parameters)


def log_densities(data: Tensor, parameters: Tensor) -> Tensor:
    """The logarithm of weight times density, per component: (..., 2, values)."""
    means, variances, weights = parameters.unsqueeze(-1).unbind(-3)
    distance = (data.unsqueeze(-2) - means).square() / variances
    return weights.log() - 0.5 * ((2 * math.pi * variances).log() + distance)


def posteriors(data: Tensor, present: Tensor, parameters: Tensor) -> tuple[Tensor, Tensor]:
    """The E step: how much each component holds of every value, and the mean log-likelihood of each row."""
    scores = log_densities(data, parameters)
    low = each_row(torch.sigmoid, scores[:, 0] - scores[:, 1])
    likelihood = torch.where(present, torch.logaddexp(scores[:, 0], scores[:, 1]), 0.0).sum(-1)
    return torch.stack([low, 1 - low], 1) * present.unsqueeze(1), likelihood / present.sum(-1).clamp(min=1)


def each_row(function: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    """A function of every number, with the bits that each row would have by itself.

    Torch computes most of a row in groups of numbers and what is left singly, which may differ in the last bit. Only
    where rows do not lie one behind the other does it begin anew with each.
    """
    length = values.shape[-1]
    if values.numel() > length and values.device.type == "cpu":
        values = functional.pad(values, (0, 1))[..., :length]
    return function(values)


def maximised(data: Tensor, share: Tensor, before: Tensor | None, limits: Limits) -> Tensor:
    """The M step; a component that holds nothing at all stays where it was."""
    held = share.sum(-1)
    weighable = held.clamp(min=1e-100)
    means = (share * data.unsqueeze(1)).sum(-1) / weighable
    if before is not None:
        means = torch.where(held > 1e-100, means, before[:, 0])
    variances = (share * (data.unsqueeze(1) - means.unsqueeze(-1)).square()).sum(-1) / weighable
    low = held[:, 0] / held.sum(-1).clamp(min=1e-100)
    return torch.stack([means, variances.clamp(min=limits.variance_floor), weights_from(low, limits)], 1)


def weights_from(low: Tensor, limits: Limits) -> Tensor:
    """Both weights from that of the low component, none below the floor."""
    low = low.clamp(limits.weight_floor, 1 - limits.weight_floor)
    return torch.stack([low, 1 - low], -1)


def climb(data: Tensor, present: Tensor, parameters: Tensor, limits: Limits, steps: int, tolerance: float) -> Tensor:
    """E and M steps; each row stops by itself once its mean log-likelihood moves by less than the tolerance."""
    if data.device.type == "cuda":
        return climb_together(data, present, parameters, limits, steps, tolerance)
    parameters = parameters.clone()
    running = torch.arange(len(data), device=data.device)
    previous = torch.full_like(data[:, 0], -math.inf)
    for _ in range(steps):
        share, likelihood = posteriors(data, present, parameters[running])
        parameters[running] = maximised(data, share, parameters[running], limits)
        moving = (likelihood - previous).abs() >= tolerance
        previous = likelihood
        if not bool(moving.all()):
            running, data, present, previous = running[moving], data[moving], present[moving], previous[moving]
            if len(running) == 0:
                break
    return parameters


def climb_together(
    data: Tensor, present: Tensor, parameters: Tensor, limits: Limits, steps: int, tolerance: float
) -> Tensor:
    """The same for a GPU: rows that have stopped are computed but not moved, so that it is rarely waited for."""
    moving = torch.ones_like(data[:, 0], dtype=torch.bool)
    previous = torch.full_like(data[:, 0], -math.inf)
    for step in range(1, steps + 1):
        share, likelihood = posteriors(data, present, parameters)
        parameters = torch.where(moving[:, None, None], maximised(data, share, parameters, limits), parameters)
        moving = moving & ((likelihood - previous).abs() >= tolerance)
        previous = likelihood
        if step % LOOK == 0 and not bool(moving.any()):
            break
    return parameters


def first_parameters(data: Tensor, present: Tensor, start: TwoGaussians | None, limits: Limits) -> Tensor:
    """The given start where there is one; a collapsed start cannot be climbed from, so its row starts afresh."""
    fresh = quantile_start(data, present, limits)
    if start is None:
        return fresh
    means, variances = start.means.to(data.device), start.variances.to(data.device)
    weights = weights_from(start.weights.to(data.device)[..., 0], limits)
    given = torch.stack([means, variances.clamp(min=limits.variance_floor), weights], -2)
    return torch.where(start.collapsed.to(data.device)[..., None, None], fresh, given)


def quantile_start(data: Tensor, present: Tensor, limits: Limits) -> Tensor:
    """Means at the 20th and 80th percentile, moved until the split halfway between them stands still (two-means).

    Without the moving, a site with few wrong labels would start with both means among its clean values and stay there.
    """
    ascending, count = padded_last(data, present), present.sum(-1)
    border = (quantile(ascending, count, 0.2) + quantile(ascending, count, 0.8)).unsqueeze(-1) / 2
    sums = functional.pad(torch.where(ascending.isfinite(), ascending, 0.0).cumsum(-1), (1, 0))
    below = torch.zeros_like(count).unsqueeze(-1)
    for _ in range(LLOYD_STEPS):
        now = torch.searchsorted(ascending, border, right=True)
        now = torch.minimum(now.clamp(min=1), (count.unsqueeze(-1) - 1).clamp(min=1))
        if data.device.type != "cuda" and torch.equal(now, below):  # to ask a GPU costs more than to repeat a step
            break
        below = now
        sum_low = sums.gather(-1, below)
        above = (count.unsqueeze(-1) - below).clamp(min=1)
        border = (sum_low / below + (sums[:, -1:] - sum_low) / above) / 2
    is_low = data <= ascending.gather(-1, below - 1)
    return maximised(data, torch.stack([is_low & present, ~is_low & present], 1).double(), None, limits)


def one_gaussian(data: Tensor, present: Tensor, limits: Limits) -> tuple[Tensor, Tensor]:
    """A single Gaussian per row, written as two equal components of which the first has all, and its likelihood."""
    count = present.sum(-1).clamp(min=1)
    mean = data.sum(-1) / count
    spread = torch.where(present, data - mean.unsqueeze(-1), 0.0)
    variance = spread.square().sum(-1) / count
    floored = variance.clamp(min=limits.variance_floor)
    likelihood = -0.5 * ((2 * math.pi * floored).log() + variance / floored)
    one, nothing = torch.ones_like(mean), torch.zeros_like(mean)
    columns = [torch.stack([mean, floored, one], -1), torch.stack([mean, floored, nothing], -1)]
    return torch.stack(columns, -1), likelihood
