"""GCE: FedAvg with generalised cross-entropy.

Zhang and Sabuncu, Generalized Cross Entropy Loss for Training Deep Neural Networks with Noisy Labels, NeurIPS 2018.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedwinnow.federation.method import Method
from fedwinnow.options import option


@dataclass(frozen=True)
class Gce(Method):
    """FedAvg with generalised cross-entropy (q = 0.7 by default; other values: gce:loss=gce:q=0.5)."""

    name: ClassVar[str] = "gce"
    citation: ClassVar[str] = "Zhang and Sabuncu, Generalized Cross Entropy Loss, NeurIPS 2018"
    loss: str = option("gce", "The loss of local training.")
