"""Small-loss selection: samples with small losses are taken for clean, a share of the others is forgotten."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedwinnow.mathematics.two_gaussians import exact, fit_two_gaussians

ROUNDING = 1e-9  # a share times a count may come out a little below the whole number that it should be


def smallest(losses: Tensor, count: int) -> Tensor:
    """The positions of the `count` smallest losses; among equal losses the first are taken."""
    return losses.detach().argsort(stable=True)[:count]


def smallest_of(losses: Tensor, among: Tensor, forgotten: float) -> Tensor:
    """A mask of the smallest losses of those in a mask, when a share of them is forgotten; at least one is kept.

    The same as `smallest` of a part with its `kept_count`, without asking a graphics card how many they are.
    """
    by_loss = losses.detach().argsort(stable=True)
    order = by_loss[(~among)[by_loss].argsort(stable=True)]
    count = (among.sum().double() * (1.0 - forgotten) + ROUNDING).long().clamp(min=1)
    chosen = torch.arange(len(losses), device=losses.device) < count
    return torch.zeros_like(chosen).index_copy_(0, order, chosen)


def kept_count(size: int, forgotten: float, *, up: bool = False) -> int:
    """How many samples of a batch are kept when a share is forgotten: rounded down or up, but at least one."""
    kept = size * (1.0 - forgotten)
    return max(1, math.ceil(kept - ROUNDING) if up else int(kept + ROUNDING))


def forgotten_share(number: int, rate: float, ramp: int, *, exponent: float = 1.0, of_rate: bool = False) -> float:
    """R(t) = rate min(t^c / T_k, 1) in round t = 1, 2, ...

    `of_rate` repeats released codes: steps from 0 to rate^c in the first T_k rounds, the rate itself afterwards.
    """
    if ramp == 0:
        return rate
    if of_rate:
        return math.pow(rate, exponent) * (number - 1) / max(ramp - 1, 1) if number <= ramp else rate
    return rate * min(math.pow(number, exponent) / ramp, 1.0)


def estimated_rate(losses: Tensor) -> float:
    """The share of wrong labels that a mixture of two Gaussians over the losses estimates."""
    # In float64, because callers compare it with limits that it may equal.
    return float(exact(fit_two_gaussians(losses).p_low(losses) < 0.5).mean())
