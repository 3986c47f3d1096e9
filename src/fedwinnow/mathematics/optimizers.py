"""The optimisers of the papers; each client starts a new one in each round, so that no momentum is carried over.

A model is one vector, so a step is a handful of vector operations. They are those of torch.optim, in the same order, so
the numbers are the same to the last bit. For a small model the bookkeeping of torch.optim would take most of the time.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from fedwinnow.options import Part, option

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Optimizer(Part):
    """Base of every optimiser."""

    lr: float = option(0.03, "Learning rate, constant.", symbol="η", above=0)
    weight_decay: float = option(0.0, "Weight decay.", at_least=0)

    @abstractmethod
    def start(self, weights: Tensor, gradient: Tensor) -> Callable[[], None]:
        """A function that makes one step: it changes the weights by the gradient that is in `gradient` when called."""

    def without_momentum(self) -> tuple[Optimizer, float]:
        """An optimiser that does the same if each gradient is added to a share of the one before, and that share."""
        return self, 0.0


@dataclass(frozen=True)
class Sgd(Optimizer):
    """Stochastic gradient descent with momentum."""

    name: ClassVar[str] = "sgd"
    source: ClassVar[str] = "FedDiv: 0.03, 0.5. FedRN: 0.01, 0.5. FedGR: 0.01, 0.5, decay 5e-4. FedES: 0.01, 0.9, 5e-4"
    momentum: float = option(0.5, "Momentum.", at_least=0, at_most=1)

    def without_momentum(self) -> tuple[Optimizer, float]:
        if self.weight_decay or type(self) is not Sgd:  # decay belongs into the sum
            return self, 0.0
        return replace(self, momentum=0.0), self.momentum

    def start(self, weights: Tensor, gradient: Tensor) -> Callable[[], None]:
        speed: Tensor | None = None

        def step() -> None:
            nonlocal speed
            change = gradient.add(weights, alpha=self.weight_decay) if self.weight_decay else gradient
            if self.momentum:
                speed = change.clone() if speed is None else speed.mul_(self.momentum).add_(change)
                change = speed
            weights.add_(change, alpha=-self.lr)

        return step


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam; weight decay is added to the gradient, as in the original."""

    name: ClassVar[str] = "adam"
    source: ClassVar[str] = "FedNoRo: 3e-4, decay 5e-4; RHFL: 1e-3"
    lr: float = option(0.0003, "Learning rate, constant.", source="FedNoRo", above=0)
    beta1: float = option(0.9, "Decay of the first moment.", at_least=0, at_most=0.9999)
    beta2: float = option(0.999, "Decay of the second moment.", at_least=0, at_most=0.99999)

    def start(self, weights: Tensor, gradient: Tensor) -> Callable[[], None]:
        first, second, steps = weights.new_zeros(weights.shape), weights.new_zeros(weights.shape), 0

        def step() -> None:
            nonlocal steps
            steps += 1
            change = gradient.add(weights, alpha=self.weight_decay) if self.weight_decay else gradient
            first.lerp_(change, 1 - self.beta1)
            second.mul_(self.beta2).addcmul_(change, change, value=1 - self.beta2)
            size = self.lr / (1 - self.beta1**steps)
            spread = (second.sqrt() / math.sqrt(1 - self.beta2**steps)).add_(1e-8)
            weights.addcdiv_(first, spread, value=-size)

        return step
