"""The optimisers of the papers; each client starts a new one in each round, so that no momentum is carried over.

The learning rate may follow a schedule over the rounds of the run. Within a round it is constant.

A model is one vector, so a step is a handful of vector operations. They are those of torch.optim, in the same order, so
the numbers are the same to the last bit. For a small model the bookkeeping of torch.optim would take most of the time.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from fedwinnow.errors import UsageError
from fedwinnow.options import Part, option

if TYPE_CHECKING:
    from torch import Tensor

LEAST_RATE = 1e-300  # a learning rate is above 0, whatever a schedule has made of it


@dataclass(frozen=True)
class Optimizer(Part):
    """Base of every optimiser."""

    lr: float = option(0.03, "Learning rate.", symbol="η", above=0)
    weight_decay: float = option(0.0, "Weight decay.", at_least=0)
    schedule: Literal["constant", "cosine", "step"] = option(
        "constant", "How the learning rate changes from round to round; cosine reaches `lowest` after the last round."
    )
    warm_up: int = option(
        0, "So many rounds first, in which the learning rate rises to `lr` in equal steps.", at_least=0
    )
    lowest: float = option(0.0, "With cosine: the share of the learning rate that it ends at.", at_least=0, at_most=1)
    every: int = option(30, "With step: after so many rounds (without warm-up) the learning rate changes.", at_least=1)
    factor: float = option(0.1, "With step: what it is multiplied by then.", above=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, schedule in (("lowest", "cosine"), ("every", "step"), ("factor", "step")):
            value = getattr(self, name)
            if self.schedule != schedule and value != getattr(Optimizer, name):
                raise UsageError(
                    f"{self.name}: {name}={value} was given without schedule={schedule}, which it is for. Add it, or "
                    f"leave {name} out."
                )

    @property
    def counts_rounds(self) -> bool:
        """Whether a round is trained otherwise if the run has more rounds."""
        return self.schedule == "cosine"

    def at_round(self, number: int, rounds: int) -> Optimizer:
        """The optimiser of one round (1 is the first) of a run with so many rounds."""
        share = self.share_at(number, rounds)
        if self.schedule == "constant" and share == 1:
            return self
        plain: dict[str, Any] = {"schedule": "constant", "warm_up": 0}
        plain |= {name: getattr(Optimizer, name) for name in ("lowest", "every", "factor")}
        return replace(self, lr=max(self.lr * share, LEAST_RATE), **plain)

    def share_at(self, number: int, rounds: int) -> float:
        """What the learning rate of a round is multiplied by."""
        if number <= self.warm_up:
            return max(number, 1) / (self.warm_up + 1)
        done, length = number - self.warm_up - 1, max(rounds - self.warm_up, 1)
        if self.schedule == "cosine":
            return self.lowest + (1 - self.lowest) * (1 + math.cos(math.pi * min(done / length, 1.0))) / 2
        return self.factor ** (done // self.every) if self.schedule == "step" else 1.0

    @abstractmethod
    def start(self, weights: Tensor, gradient: Tensor) -> Callable[[], None]:
        """A function that makes one step: it changes the weights by the gradient that is in `gradient` when called."""

    def start_gated(self, weights: Tensor, gradient: Tensor, gate: Tensor) -> Callable[[], None]:
        """The same, but a step is made only where `gate`, one truth value on the device of the weights, says so.

        An optimiser that can make the step without asking the device for the value does so by itself.
        """
        step = self.start(weights, gradient)
        return lambda: step() if bool(gate) else None

    @property
    def leaves_alone(self) -> bool:
        """Whether a weight stays as it is, to the last bit, as long as its gradient is 0."""
        return not self.weight_decay and type(self).__module__ == __name__

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

    def start_gated(self, weights: Tensor, gradient: Tensor, gate: Tensor) -> Callable[[], None]:
        if type(self) is not Sgd:
            return super().start_gated(weights, gradient, gate)
        speed = weights.new_zeros(weights.shape) if self.momentum else None

        def step() -> None:
            change = gradient.add(weights, alpha=self.weight_decay) if self.weight_decay else gradient
            if speed is not None:
                change = speed.mul(self.momentum).add_(change)
                speed.copy_(change.where(gate, speed))
            weights.copy_(weights.add(change, alpha=-self.lr).where(gate, weights))

        return step


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam; weight decay is added to the gradient, as in the original."""

    name: ClassVar[str] = "adam"
    source: ClassVar[str] = "FedNoRo: 3e-4, decay 5e-4; RHFL: 1e-3"
    lr: float = option(0.0003, "Learning rate.", source="FedNoRo", above=0)
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

    def start_gated(self, weights: Tensor, gradient: Tensor, gate: Tensor) -> Callable[[], None]:
        if type(self) not in (Adam, AdamW):
            return super().start_gated(weights, gradient, gate)
        first, second, steps = weights.new_zeros(weights.shape), weights.new_zeros(weights.shape), gate.new_zeros(())
        steps = steps.double()
        apart = type(self) is AdamW  # the decay, which is then no part of the gradient

        def step() -> None:
            steps.add_(gate)
            decayed = self.weight_decay and not apart
            change = gradient.add(weights, alpha=self.weight_decay) if decayed else gradient
            first.copy_(first.lerp(change, 1 - self.beta1).where(gate, first))
            grown = second.mul(self.beta2).addcmul_(change, change, value=1 - self.beta2)
            second.copy_(grown.where(gate, second))
            size = (self.lr / (1 - self.beta1**steps)).to(weights.dtype)
            spread = (second.sqrt() / (1 - self.beta2**steps).sqrt().to(weights.dtype)).add_(1e-8)
            before = weights.mul(1 - self.lr * self.weight_decay) if apart and self.weight_decay else weights
            weights.copy_((before - size * first / spread).where(gate, weights))

        return step


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam whose weight decay shrinks the weights by itself, apart from the gradient."""

    name: ClassVar[str] = "adamw"
    citation: ClassVar[str] = "Loshchilov and Hutter, Decoupled Weight Decay Regularization, ICLR 2019"
    source: ClassVar[str] = "Loshchilov and Hutter: 1e-3, decay 1e-2"
    lr: float = option(0.001, "Learning rate.", above=0)
    weight_decay: float = option(0.01, "Weight decay: each step takes this share, times the learning rate.", at_least=0)

    def start(self, weights: Tensor, gradient: Tensor) -> Callable[[], None]:
        adam = replace(self, weight_decay=0.0)
        step = super(AdamW, adam).start(weights, gradient)

        def shrink_and_step() -> None:
            weights.mul_(1 - self.lr * self.weight_decay)
            step()

        return shrink_and_step if self.weight_decay else step
