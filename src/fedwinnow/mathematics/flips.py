"""Which class is mistaken for which, over all sites, fitted by EM without bringing samples or answers together.

A wrong label of a sample of class t is c with probability F[t, c], the same at every site; how many labels are wrong
differs from site to site. The E step happens at the sites, which send expected counts; the server adds them up and
makes the M step. That is EM on pooled answers, step by step. The M step needs only the sum of all sites' counts, but
the server gets those of every site; their columns sum to the site's expected number of wrong labels of each class.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

LEAST = 1e-12  # a probability that was rounded to 0
DOUBT = 1.0  # of each confusion, so many are taken for seen before the first


@dataclass(frozen=True, eq=False)
class Flips:
    """F: rows are true classes, columns given ones; a row sums to 1, its diagonal is 0."""

    flat: Tensor

    @classmethod
    def start(cls, classes: int) -> Flips:
        """Any other class is as likely."""
        return cls(torch.ones(classes, classes, dtype=torch.float64)).maximised(torch.zeros(classes, classes))

    def log_ratio(self, probabilities: Tensor, given: Tensor) -> Tensor:
        """log p(given | wrong) / p(given | right), by what a model says of the sample's class."""
        right = probabilities.gather(1, given[:, None])[:, 0]
        return self.others(probabilities, given).sum(1).clamp(min=LEAST).log() - right.clamp(min=LEAST).log()

    def others(self, probabilities: Tensor, given: Tensor) -> Tensor:
        """p(t) F[t, given] of every sample and class: how a wrong label could have come about."""
        return probabilities * self.flat[:, given].T

    def statistics(self, probabilities: Tensor, given: Tensor, p_wrong: Tensor) -> Tensor:
        """Expected counts: of how many samples of class t the label is wrong and c."""
        ways = self.others(probabilities, given)
        ways = ways / ways.sum(1, keepdim=True).clamp(min=LEAST) * p_wrong[:, None]
        return torch.zeros_like(self.flat).index_add_(1, given, ways.T)

    def maximised(self, counts: Tensor) -> Flips:
        """The M step from the sum of all sites' counts."""
        classes = len(counts)
        off = (counts.double() + DOUBT) * (1 - torch.eye(classes, dtype=torch.float64))
        return Flips(off / off.sum(1, keepdim=True).clamp(min=LEAST))
