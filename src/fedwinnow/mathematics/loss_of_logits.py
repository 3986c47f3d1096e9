"""Objectives of training in a form that needs no automatic differentiation, for small heads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from fedwinnow.mathematics.heads import Head
from fedwinnow.mathematics.losses import Loss
from fedwinnow.mathematics.payload import FlatModel


def unmixed(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The batch as it is."""
    return x, y


@dataclass(frozen=True)
class LossOfLogits:
    """A loss in the form in which heads are trained by hand: it knows the model by its logits alone, and the samples
    only as what the model is shown.

    Besides, a term of the weights alone may be given by its gradient (`pull`).
    """

    criterion: Loss
    class_counts: Tensor
    mix: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = unmixed  # what the model is shown instead of a batch
    shift: Tensor | None = None  # is added to the logits
    pull: Callable[[FlatModel], None] | None = None  # adds the gradient of the further term to the model's gradient

    def differentiate(self, head: Head, model: FlatModel, x: Tensor, y: Tensor, kept: float = 0.0) -> None:
        """Write the gradient of this loss for one batch into the model's gradient, on what is kept of the last one."""
        x, target = self.mix(x, y)
        x = x.flatten(1)
        logits, inputs = head.forward(x)
        if self.shift is not None:
            logits = logits + self.shift
        head.backward(x, inputs, self.criterion.slope(logits, target, self.class_counts), kept)
        if self.pull is not None:
            self.pull(model)
