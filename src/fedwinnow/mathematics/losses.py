"""Losses that a user can choose for any method; each takes hard labels (n) or soft ones (n x classes)."""

from __future__ import annotations

import inspect
import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from fedwinnow.errors import RunError, UsageError
from fedwinnow.options import Part, option

LEAST = 1e-7  # the least probability in losses that divide by one or take its logarithm


@dataclass(frozen=True)
class Loss(Part):
    """Base of every loss."""

    def __init_subclass__(cls, **more: Any) -> None:
        """A class that changes the loss and says nothing of its gradient must not inherit that of another loss."""
        super().__init_subclass__(**more)
        if ("__call__" in vars(cls) or "mean" in vars(cls)) and "slope" not in vars(cls):
            cls.slope = Loss.slope  # type: ignore[method-assign]

    @abstractmethod
    def __call__(self, logits: Tensor, target: Tensor, class_counts: Tensor) -> Tensor:
        """The loss of every sample; `class_counts` are the site's given labels per class."""

    def mean(self, logits: Tensor, target: Tensor, class_counts: Tensor) -> Tensor:
        """The mean loss of a batch."""
        return self(logits, target, class_counts).mean()

    def slope(self, logits: Tensor, target: Tensor, class_counts: Tensor) -> Tensor:
        """The gradient of `mean` with respect to the logits, for heads that are trained by hand.

        A loss need not write it: this one asks automatic differentiation, from the logits on.
        """
        with torch.enable_grad():
            leaf = logits.detach().requires_grad_()
            return torch.autograd.grad(self.mean(leaf, target, class_counts), leaf)[0]


@dataclass(frozen=True)
class CrossEntropy(Loss):
    """The usual cross-entropy."""

    name: ClassVar[str] = "cross_entropy"

    def __call__(self, logits: Tensor, target: Tensor, class_counts: Tensor) -> Tensor:
        return cross_entropy(logits, target, reduction="none")

    def mean(self, logits: Tensor, target: Tensor, class_counts: Tensor) -> Tensor:
        # The gradient is the same to the last bit, in fewer operations; small models train faster by it.
        return cross_entropy(logits, target)

    def slope(self, logits: Tensor, target: Tensor, class_counts: Tensor) -> Tensor:
        return slope_of_cross_entropy(logits.softmax(1), target).div_(len(logits))


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
        probability = logits.softmax(1).clamp(min=LEAST)
        # -sum_c p_c log y_c with y clamped to [floor, 1]: for a hard label this is -log(floor) (1 - p_y).
        reverse = -(probability * soft(target, logits).clamp(self.floor, 1.0).log()).sum(1)
        return self.alpha * cross_entropy(logits, target, reduction="none") + self.beta * reverse

    def slope(self, logits: Tensor, target: Tensor, class_counts: Tensor) -> Tensor:
        probability = logits.softmax(1)
        # Reverse cross-entropy is sum_c p_c g_c; a probability below the least one is a constant in it.
        weighted = probability * as_rows(target, logits).clamp(self.floor, 1.0).log_().neg_()
        weighted.masked_fill_(probability < LEAST, 0.0)
        reverse = weighted.addcmul_(probability, weighted.sum(1, keepdim=True), value=-1)
        forward = slope_of_cross_entropy(probability, target).mul_(self.alpha)
        return forward.add_(reverse, alpha=self.beta).div_(len(logits))


@dataclass(frozen=True)
class GeneralisedCrossEntropy(Loss):
    """(1 - p_y^q) / q: cross-entropy for q near 0, mean absolute error for q = 1."""

    name: ClassVar[str] = "gce"
    citation: ClassVar[str] = "Zhang and Sabuncu, Generalized Cross Entropy Loss, NeurIPS 2018"
    q: float = option(0.7, "Between cross-entropy (near 0) and absolute error (1).", symbol="q", above=0, at_most=1)

    def __call__(self, logits: Tensor, target: Tensor, class_counts: Tensor) -> Tensor:
        probability = logits.softmax(1).clamp(min=LEAST)
        return (soft(target, logits) * (1.0 - probability.pow(self.q)) / self.q).sum(1)

    def slope(self, logits: Tensor, target: Tensor, class_counts: Tensor) -> Tensor:
        probability = logits.softmax(1)
        # dL/dp_c = -y_c p_c^(q-1), and 0 for a probability below the least one; dp_c/dz_k = p_c (1[c=k] - p_k).
        weighted = as_rows(target, logits) * probability.pow(self.q)
        weighted.masked_fill_(probability < LEAST, 0.0)
        return probability.mul_(weighted.sum(1, keepdim=True)).sub_(weighted).div_(len(logits))


@dataclass(frozen=True)
class LogitAdjustment(Loss):
    """Cross-entropy of logits plus tau log of the site's own label frequencies; prediction uses plain logits."""

    name: ClassVar[str] = "logit_adjustment"
    citation: ClassVar[str] = "Menon et al., Long-tail Learning via Logit Adjustment, ICLR 2021"
    tau: float = option(1.0, "Strength of the adjustment.", symbol="τ", source="FedNoRo", at_least=0)
    floor: float = option(1e-8, "Frequency of a class that the site does not hold.", above=0, at_most=1)

    def __call__(self, logits: Tensor, target: Tensor, class_counts: Tensor) -> Tensor:
        return cross_entropy(self.adjusted(logits, class_counts), target, reduction="none")

    def slope(self, logits: Tensor, target: Tensor, class_counts: Tensor) -> Tensor:
        probability = self.adjusted(logits, class_counts).softmax(1)
        return slope_of_cross_entropy(probability, target).div_(len(logits))

    def adjusted(self, logits: Tensor, class_counts: Tensor) -> Tensor:
        """The logits that are trained."""
        return logits + self.tau * self.log_prior(class_counts)

    def log_prior(self, class_counts: Tensor) -> Tensor:
        """log pi_k; a class that the site lacks gets a large negative number instead of minus infinity."""
        frequency = class_counts / class_counts.sum().clamp(min=1)
        return frequency.clamp(min=self.floor).log().clamp(min=math.log(self.floor))


def slope_of_cross_entropy(probability: Tensor, target: Tensor) -> Tensor:
    """The gradient of each sample's cross-entropy with respect to its logits; may overwrite the probabilities."""
    if target.dim() == 2:
        return probability.mul(target.sum(1, keepdim=True)).sub_(target)
    return probability.sub_(as_rows(target, probability))


def mean_over(losses: Tensor, kept: Tensor) -> Tensor:
    """The mean loss of the samples in a mask; a graphics card need not be asked how many they are."""
    return torch.where(kept, losses, 0.0).sum() / kept.sum().clamp(min=1)


def soft(target: Tensor, logits: Tensor) -> Tensor:
    """Labels as rows of probabilities."""
    return target if target.dim() == 2 else one_hot(target, logits.shape[1]).to(logits.dtype)


def as_rows(target: Tensor, logits: Tensor) -> Tensor:
    """The same as `soft`, in fewer operations."""
    if target.dim() == 2:
        return target
    return torch.eye(logits.shape[1], dtype=logits.dtype, device=logits.device).index_select(0, target)


def sharpened(probabilities: Tensor, temperature: float) -> Tensor:
    """p^(1/T), made to sum to 1."""
    powers = probabilities.pow(1 / temperature)
    return powers / powers.sum(1, keepdim=True)


@dataclass(frozen=True)
class WeightedLoss(Loss):
    """Another loss, times a weight per sample: the last column of the target, after those of a soft label."""

    criterion: Loss

    def __call__(self, logits: Tensor, target: Tensor, class_counts: Tensor) -> Tensor:
        return target[:, -1] * self.criterion(logits, target[:, :-1], class_counts)

    def slope(self, logits: Tensor, target: Tensor, class_counts: Tensor) -> Tensor:
        if isinstance(self.criterion, OwnLoss):  # it may return a mean, which cannot be weighted
            return super().slope(logits, target, class_counts)
        return self.criterion.slope(logits, target[:, :-1], class_counts) * target[:, -1:]


# --- losses that a program hands over ------------------------------------------------------------------------------

FORMS = "loss(logits, target), or loss(logits, target, class_counts)"


@dataclass(frozen=True)
class OwnLoss(Loss):
    """A function of a program; it returns the loss of every sample, or their mean."""

    function: Any = option(..., "The function, or a module of torch.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.function) or isinstance(self.function, type):
            made = f"; make it first: {self.function.__name__}()" if isinstance(self.function, type) else ""
            raise UsageError(f"{self.function!r} was given as a loss; allowed: {FORMS}{made}.")
        _ = self.takes

    def __str__(self) -> str:
        return str(getattr(self.function, "__name__", None) or type(self.function).__name__).strip("<>")

    @cached_property
    def takes(self) -> int:
        """How many arguments the function takes: two, or three."""
        try:
            signature = inspect.signature(self.function)
        except (TypeError, ValueError):  # some functions in C do not tell
            return 2
        # A third argument with a default is for something else (reduction, weight), unless it has the name.
        for count in (3, 2):
            try:
                bound = signature.bind(*range(count)).arguments
            except TypeError:
                continue
            third = list(signature.parameters.values())[2:3] if count == 3 and len(bound) == 3 else []
            if count == 2 or (third and (third[0].name == "class_counts" or third[0].default is third[0].empty)):
                return count
        raise UsageError(f"the loss {self} takes {signature}; allowed: {FORMS}.")

    def asked(self, logits: Tensor, target: Tensor, class_counts: Tensor) -> Tensor:
        """What the function returns, checked."""
        function: Callable[..., Any] = self.function
        found = function(logits, target) if self.takes == 2 else function(logits, target, class_counts)
        if not isinstance(found, Tensor) or found.shape not in ((), (1,), (len(logits),)):
            what = f"of the shape {tuple(found.shape)}" if isinstance(found, Tensor) else f"({type(found).__name__})"
            raise RunError(
                f"the loss {self} returned something {what}; allowed: one number for each of the {len(logits)} samples,"
                " or their mean, as a tensor."
            )
        return found

    def __call__(self, logits: Tensor, target: Tensor, class_counts: Tensor) -> Tensor:
        found = self.asked(logits, target, class_counts)
        if found.dim() == 0 and len(logits) != 1:
            raise RunError(
                f"the loss {self} returns a mean, but this method needs the loss of every sample: let it return one "
                "number per sample (reduction='none')."
            )
        return found.reshape(len(logits))

    def mean(self, logits: Tensor, target: Tensor, class_counts: Tensor) -> Tensor:
        return self.asked(logits, target, class_counts).mean()


def loss_of(value: Any) -> Any:
    """A function as a loss; the name of a loss, its table, a loss, or None where a preset decides, as it is."""
    return value if value is None or isinstance(value, str | dict | Part) else OwnLoss(function=value)
