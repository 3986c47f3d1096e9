"""FedProx: FedAvg with a penalty that keeps local models near the global one.

Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020.

| symbol | field |
|---|---|
| μ | mu |
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from torch import Tensor

from fedwinnow.federation.client import Client
from fedwinnow.federation.method import Method
from fedwinnow.mathematics.loss_of_logits import LossOfLogits
from fedwinnow.mathematics.payload import Payload
from fedwinnow.mathematics.proximal import distance_to, pull_back
from fedwinnow.options import option


@dataclass(frozen=True)
class FedProx(Method):
    """FedAvg plus (mu/2) times the squared distance to the global model in the local loss."""

    name: ClassVar[str] = "fedprox"
    citation: ClassVar[str] = "Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020"
    mu: float = option(1.0, "Weight of the proximal term.", symbol="μ", source="FedGR, FedCorr, FedDiv", at_least=0)
    prox: Literal["squared", "norm"] = option(
        "squared", "The squared distance (paper), or the plain one that some published codes use."
    )

    def objective(self, client: Client, rows: Tensor, x: Tensor, y: Tensor, got: Payload) -> Tensor:
        loss = super().objective(client, rows, x, y, got)
        # eq. (2): h(w) = F(w) + mu/2 ||w - w_global||^2
        return loss + self.mu / 2 * distance_to(got["weights"], client.model, squared=self.prox == "squared")

    def by_hand(self, client: Client, got: Payload) -> LossOfLogits | None:
        loss = super().by_hand(client, got)
        pull = pull_back(got["weights"], self.mu / 2, squared=self.prox == "squared")
        return None if loss is None else replace(loss, pull=pull)
