"""A site's own share of wrong labels, class by class: the mixing weights of a mixture that is otherwise shared."""

from __future__ import annotations

import torch
from torch import Tensor

SMALLEST_RATE = 1e-4  # a site is never quite sure that it has no wrong label, or no right one
NOTHING = 1e-9  # so that a class without samples and without shrinkage divides by something


def posterior(log_ratio: Tensor, labels: Tensor, rates: Tensor) -> Tensor:
    """The E step: the probability that each label is wrong, from log p(evidence | wrong) / p(evidence | right)."""
    return (rates[labels].logit() + log_ratio).sigmoid()


def rates_by_class(p_wrong: Tensor, labels: Tensor, classes: int, shrinkage: float) -> Tensor:
    """The M step: the share of wrong labels of every given class, drawn towards that of the whole site.

    `shrinkage` counts as so many further samples of the class at the site's own rate.
    """
    held = torch.zeros(classes, dtype=torch.float64).index_add_(0, labels, p_wrong.double())
    counts = torch.bincount(labels, minlength=classes)
    overall = held.sum() / counts.sum().clamp(min=1)
    rates = (held + shrinkage * overall) / (counts + shrinkage).clamp(min=NOTHING)
    return rates.clamp(SMALLEST_RATE, 1 - SMALLEST_RATE)


def within_quota(p_wrong: Tensor, labels: Tensor, rates: Tensor) -> Tensor:
    """Of each class with n samples, the (1 - rate) n that are least likely wrong, rounded; of equals the first."""
    counts = torch.bincount(labels, minlength=len(rates))
    quota = ((1 - rates) * counts + 0.5).floor().long()
    order = p_wrong.argsort(stable=True)
    order = order[labels[order].argsort(stable=True)]  # class by class, the best first
    place = torch.arange(len(labels)) - (counts.cumsum(0) - counts)[labels[order]]
    kept = torch.zeros(len(labels), dtype=torch.bool)
    kept[order] = place < quota[labels[order]]
    return kept
