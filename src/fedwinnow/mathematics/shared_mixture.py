"""One mixture of two Gaussians over the scores of all sites, fitted by EM without bringing the scores together.

A score lies between 0, where the given label is what the model would say, and 1. Sites send the sufficient statistics
of their E step, six numbers; the server adds them up and makes the M step. That is EM on the pooled scores, step by
step. One of the six is the site's expected number of wrong labels. Both components have one variance, so the log-odds
of "wrong" rise with the score.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

START = (0.2, 0.8, 0.05)  # means of right and wrong labels, and their variance, before the first step
SMALLEST_VARIANCE = 1e-4  # of scores between 0 and 1
NOTHING = 1e-9  # a component that holds less of all samples stays where it was


@dataclass(frozen=True, eq=False)
class SharedMixture:
    """Three numbers: the mean score of right labels, that of wrong ones, and one variance for both."""

    flat: Tensor
    relative: bool = True  # 1 - p(given) / p(likeliest); false: 1 - p(given)

    @classmethod
    def start(cls, *, relative: bool = True) -> SharedMixture:
        """Right labels below, wrong ones above."""
        return cls(torch.tensor(START, dtype=torch.float64), relative)

    def scores(self, probabilities: Tensor, given: Tensor) -> Tensor:
        """How far the given label is from what the model would say."""
        best = probabilities.max(1).values if self.relative else 1.0
        return 1 - probabilities.gather(1, given[:, None])[:, 0] / best

    def log_ratio(self, probabilities: Tensor, given: Tensor) -> Tensor:
        """log N(s; high) - log N(s; low), a straight line in s."""
        low, high, variance = self.flat.unbind()
        return (high - low) / variance * (self.scores(probabilities, given) - (low + high) / 2)

    def statistics(self, probabilities: Tensor, given: Tensor, p_wrong: Tensor) -> Tensor:
        """What the low and the high component hold of the samples, of their scores and of their squares."""
        scores = self.scores(probabilities, given)
        return torch.stack([1 - p_wrong, p_wrong]) @ torch.stack([torch.ones_like(scores), scores, scores.square()], 1)

    def maximised(self, statistics: Tensor) -> SharedMixture:
        """The M step from the sum of all sites' statistics."""
        held, sums, squares = statistics.unbind(1)
        before = self.flat[:2]
        means = torch.where(held > NOTHING, sums / held.clamp(min=NOTHING), before)
        means = means if bool(means[0] < means[1]) else before  # wrong labels never have the lower scores
        spread = (squares - 2 * means * sums + means.square() * held).sum() / held.sum().clamp(min=NOTHING)
        return replace(self, flat=torch.cat([means, spread.clamp(min=SMALLEST_VARIANCE).reshape(1)]))
