"""FedLA: FedAvg with logits adjusted by each site's own label frequencies.

Menon et al., Long-tail Learning via Logit Adjustment, ICLR 2021; used on its own and inside FedNoRo.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedwinnow.federation.method import Method
from fedwinnow.options import option


@dataclass(frozen=True)
class FedLa(Method):
    """FedAvg with the log of the site's label frequencies added to the logits in training, not in prediction."""

    name: ClassVar[str] = "logit_adjustment"
    citation: ClassVar[str] = "Menon et al., Long-tail Learning via Logit Adjustment, ICLR 2021"
    loss: str = option("logit_adjustment", "The loss of local training.")
