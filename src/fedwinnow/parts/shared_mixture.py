"""One mixture of two Gaussians over the scores of all sites, fitted by EM without bringing the scores together.

A site keeps its scores and its own mixing weights. It sends the sufficient statistics of its E step; the server adds
them up and makes the M step. That is EM on the pooled scores, step by step, and it needs sums only. Both components
have one variance, so the log-odds of "wrong" rise with the score: of two samples of a class, the one with the larger
score is never the cleaner one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SMALLEST_VARIANCE = 1e-4  # of scores between 0 and 1
SMALLEST_RATE = 1e-4  # a site is never quite sure that it has no wrong label, or no right one
NOTHING = 1e-9  # a component that holds less of all samples stays where it was


@dataclass(frozen=True, eq=False)
class SharedMixture:
    """The component of right labels (low) and that of wrong ones (high), with one variance for both."""

    low: Tensor
    high: Tensor
    variance: Tensor

    @classmethod
    def from_flat(cls, flat: Tensor) -> SharedMixture:
        """From three numbers, as they travel."""
        return cls(*flat.double().unbind())

    @property
    def flat(self) -> Tensor:
        """Three numbers that may travel."""
        return torch.stack([self.low, self.high, self.variance])

    def log_ratio(self, scores: Tensor) -> Tensor:
        """log N(s; high) - log N(s; low), a straight line in s."""
        return (self.high - self.low) / self.variance * (scores.double() - (self.low + self.high) / 2)

    def p_wrong(self, scores: Tensor, rates: Tensor) -> Tensor:
        """The E step: the probability of the high component, where it has these weights."""
        return (rates.logit() + self.log_ratio(scores)).sigmoid()

    def maximised(self, statistics: Tensor) -> SharedMixture:
        """The M step from the sum of all sites' statistics."""
        held, sums, squares = statistics.double().unbind(1)
        before = torch.stack([self.low, self.high])
        means = torch.where(held > NOTHING, sums / held.clamp(min=NOTHING), before)
        means = means if bool(means[0] < means[1]) else before  # wrong labels never have the lower scores
        spread = (squares - 2 * means * sums + means.square() * held).sum() / held.sum().clamp(min=NOTHING)
        return SharedMixture(means[0], means[1], spread.clamp(min=SMALLEST_VARIANCE))


def sufficient_statistics(scores: Tensor, p_wrong: Tensor) -> Tensor:
    """Six numbers: what the low and the high component hold of the samples, of their scores and of their squares."""
    shares = torch.stack([1 - p_wrong, p_wrong]).double()
    powers = torch.stack([torch.ones_like(scores), scores, scores.square()], 1).double()
    return shares @ powers


def rates_by_class(p_wrong: Tensor, labels: Tensor, classes: int, shrinkage: float) -> Tensor:
    """The mixing weight of every given class: its share of wrong labels, drawn towards that of the whole site.

    `shrinkage` counts as so many further samples of the class at the site's own rate.
    """
    held = torch.zeros(classes, dtype=torch.float64).index_add_(0, labels, p_wrong.double())
    counts = torch.bincount(labels, minlength=classes)
    overall = held.sum() / counts.sum().clamp(min=1)
    rates = (held + shrinkage * overall) / (counts + shrinkage).clamp(min=NOTHING)
    return rates.clamp(SMALLEST_RATE, 1 - SMALLEST_RATE)
