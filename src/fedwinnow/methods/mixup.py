"""MixUp: FedAvg on mixed pairs of samples.

Zhang et al., mixup: Beyond Empirical Risk Minimization, ICLR 2018.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedwinnow.federation.method import Method
from fedwinnow.options import option


@dataclass(frozen=True)
class Mixup(Method):
    """FedAvg on convex combinations of two samples and their labels."""

    name: ClassVar[str] = "mixup"
    citation: ClassVar[str] = "Zhang et al., mixup: Beyond Empirical Risk Minimization, ICLR 2018"
    mixup: float = option(1.0, "Mix with a share from Beta(mixup, mixup).", symbol="α", source="FedNoisy", above=0)

    @property
    def mixes(self) -> str:
        return "MixUp"
