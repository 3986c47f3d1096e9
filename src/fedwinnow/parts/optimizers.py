"""The optimisers of the papers; made anew for every client and round, so that no momentum is carried over."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fedwinnow.options import Part, option

if TYPE_CHECKING:
    from torch import nn, optim


@dataclass(frozen=True)
class Optimizer(Part):
    """Base of every optimiser."""

    lr: float = option(0.03, "Learning rate, constant.", symbol="η", above=0)
    weight_decay: float = option(0.0, "Weight decay.", at_least=0)

    @abstractmethod
    def make(self, vector: nn.Parameter) -> optim.Optimizer:
        """The torch optimiser for a model's vector of weights."""


@dataclass(frozen=True)
class Sgd(Optimizer):
    """Stochastic gradient descent with momentum."""

    name: ClassVar[str] = "sgd"
    source: ClassVar[str] = (
        "FedDiv 0.03, 0.5; FedRN 0.01, 0.5; FedGR 0.01, 0.5, decay 5e-4; FedES 0.01, 0.9, decay 5e-4"
    )
    momentum: float = option(0.5, "Momentum.", at_least=0, at_most=1)

    def make(self, vector: nn.Parameter) -> optim.Optimizer:
        from torch import optim

        return optim.SGD(
            [vector], lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay, foreach=False, fused=False
        )


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam; weight decay is added to the gradient, as in the original."""

    name: ClassVar[str] = "adam"
    source: ClassVar[str] = "FedNoRo: 3e-4, decay 5e-4; RHFL: 1e-3"
    lr: float = option(0.0003, "Learning rate, constant.", source="FedNoRo", above=0)
    beta1: float = option(0.9, "Decay of the first moment.", at_least=0, at_most=1)
    beta2: float = option(0.999, "Decay of the second moment.", at_least=0, at_most=1)

    def make(self, vector: nn.Parameter) -> optim.Optimizer:
        from torch import optim

        betas = (self.beta1, self.beta2)
        return optim.Adam([vector], lr=self.lr, betas=betas, weight_decay=self.weight_decay, foreach=False, fused=False)
