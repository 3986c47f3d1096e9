"""Losses that a user can choose for any method; each takes hard labels (n) or soft ones (n x classes)."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from fedwinnow.options import Part, option


@dataclass(frozen=True)
class Loss(Part):
    """Base of every loss."""

    @abstractmethod
    def __call__(self, logits: Tensor, target: Tensor, class_counts: Tensor) -> Tensor:
        """The loss of every sample; `class_counts` are the site's given labels per class."""

    def mean(self, logits: Tensor, target: Tensor, class_counts: Tensor) -> Tensor:
        """The mean loss of a batch."""
        return self(logits, target, class_counts).mean()


@dataclass(frozen=True)
class CrossEntropy(Loss):
    """The usual cross-entropy."""

    name: ClassVar[str] = "cross_entropy"

    def __call__(self, logits: Tensor, target: Tensor, class_counts: Tensor) -> Tensor:
        return cross_entropy(logits, target, reduction="none")

    def mean(self, logits: Tensor, target: Tensor, class_counts: Tensor) -> Tensor:
        # The gradient is the same to the last bit, in fewer operations; small models train faster by it.
        return cross_entropy(logits, target)


@dataclass(frozen=True)
class SymmetricCrossEntropy(Loss):
    """alpha times cross-entropy plus beta times reverse cross-entropy, which is bounded and forgives wrong labels."""

    name: ClassVar[str] = "sce"
    citation: ClassVar[str] = "Wang et al., Symmetric Cross Entropy for Robust Learning with Noisy Labels, ICCV 2019"
    alpha: float = option(0.1, "Weight of cross-entropy.", symbol="α", source="FedNoisy, RHFL", at_least=0)
    beta: float = option(1.0, "Weight of reverse cross-entropy.", symbol="β", source="FedNoisy, RHFL", at_least=0)
    floor: float = option(
        1e-4, "Stands in for 0 in the logarithm of a one-hot label.", symbol="exp(A)", above=0, at_most=1
    )

    def __call__(self, logits: Tensor, target: Tensor, class_counts: Tensor) -> Tensor:
        probability = logits.softmax(1).clamp(min=1e-7)
        # -sum_c p_c log y_c with y clamped to [floor, 1]: for a hard label this is -log(floor) (1 - p_y).
        reverse = -(probability * soft(target, logits).clamp(self.floor, 1.0).log()).sum(1)
        return self.alpha * cross_entropy(logits, target, reduction="none") + self.beta * reverse


@dataclass(frozen=True)
class GeneralisedCrossEntropy(Loss):
    """(1 - p_y^q) / q: cross-entropy for q near 0, mean absolute error for q = 1."""

    name: ClassVar[str] = "gce"
    citation: ClassVar[str] = "Zhang and Sabuncu, Generalized Cross Entropy Loss, NeurIPS 2018"
    q: float = option(0.7, "Between cross-entropy (near 0) and absolute error (1).", symbol="q", above=0, at_most=1)

    def __call__(self, logits: Tensor, target: Tensor, class_counts: Tensor) -> Tensor:
        probability = logits.softmax(1).clamp(min=1e-7)
        return (soft(target, logits) * (1.0 - probability.pow(self.q)) / self.q).sum(1)


@dataclass(frozen=True)
class LogitAdjustment(Loss):
    """Cross-entropy of logits plus tau log of the site's own label frequencies; prediction uses plain logits."""

    name: ClassVar[str] = "logit_adjustment"
    citation: ClassVar[str] = "Menon et al., Long-tail Learning via Logit Adjustment, ICLR 2021"
    tau: float = option(1.0, "Strength of the adjustment.", symbol="τ", source="FedNoRo", at_least=0)
    floor: float = option(1e-8, "Frequency of a class that the site does not hold.", above=0, at_most=1)

    def __call__(self, logits: Tensor, target: Tensor, class_counts: Tensor) -> Tensor:
        return cross_entropy(logits + self.tau * self.log_prior(class_counts), target, reduction="none")

    def log_prior(self, class_counts: Tensor) -> Tensor:
        """log pi_k; a class that the site lacks gets a large negative number instead of minus infinity."""
        frequency = class_counts / class_counts.sum().clamp(min=1)
        return frequency.clamp(min=self.floor).log().clamp(min=math.log(self.floor))


def soft(target: Tensor, logits: Tensor) -> Tensor:
    """Labels as rows of probabilities."""
    return target if target.dim() == 2 else one_hot(target, logits.shape[1]).to(logits.dtype)


def sharpened(probabilities: Tensor, temperature: float) -> Tensor:
    """p^(1/T), made to sum to 1."""
    powers = probabilities.pow(1 / temperature)
    return powers / powers.sum(1, keepdim=True)
