"""SCE: FedAvg with symmetric cross-entropy.

Wang et al., Symmetric Cross Entropy for Robust Learning with Noisy Labels, ICCV 2019.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedwinnow.federation.method import Method
from fedwinnow.options import option


@dataclass(frozen=True)
class Sce(Method):
    """FedAvg with symmetric cross-entropy (0.1 and 1 by default; other weights: fedavg:loss="sce:alpha=6,beta=0.1")."""

    name: ClassVar[str] = "sce"
    citation: ClassVar[str] = "Wang et al., Symmetric Cross Entropy for Robust Learning with Noisy Labels, ICCV 2019"
    loss: str = option("sce", "The loss of local training.")
