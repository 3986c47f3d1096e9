"""S-FedAvg: choose clients more often if their updates improved the model on the server's own samples.

Nagalapatti and Narayanam: Game of Gradients: Mitigating Irrelevant Clients in Federated Learning, AAAI 2021.

| symbol | field or state | | symbol | field or state |
|---|---|---|---|---|
| V | the run's trusted samples | | φ_k | server.state["relevance"] |
| α, β | memory, news | | s_k | Shapley value of the round |
| R | permutations | | P_φ | probabilities |

A round is a game: the value of a group of its clients is the performance on V of the mean of their models. A client's
Shapley value, its mean gain over random orders, changes its relevance. Clients are drawn by the softmax of relevances.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedwinnow.federation.method import Method, Replies, model_forms
from fedwinnow.federation.server import Server
from fedwinnow.mathematics.payload import Payload, ReplyForm, Summing
from fedwinnow.mathematics.scaling import zero_to_one
from fedwinnow.options import option
from fedwinnow.randomness import uniforms
from fedwinnow.steps.contributions import shapley_values


@dataclass(frozen=True)
class SFedAvg(Method):
    """FedAvg that chooses clients by their Shapley values on trusted samples of the server."""

    name: ClassVar[str] = "s_fedavg"
    sums: ClassVar[dict[str, Summing]] = {}
    citation: ClassVar[str] = "Nagalapatti and Narayanam, Game of Gradients, AAAI 2021"
    needs: ClassVar[tuple[str, ...]] = ("trusted_data",)

    memory: float = option(0.75, "Share of the old relevance that is kept.", symbol="α", at_least=0, at_most=1)
    news: float = option(0.25, "Weight of this round's Shapley value.", symbol="β", at_least=0)
    permutations: int = option(5, "Random orders in which a round's clients are added.", symbol="R", at_least=1)
    measure: Literal["accuracy", "loss"] = option("accuracy", "What a model is worth on the trusted samples.")
    truncate: float = option(
        0.0, "End an order when its group is worth as much as all together, up to this; 0: never.", at_least=0
    )
    temperature: float = option(
        1.0, "Divides relevances before the softmax; at 1 they are too alike to matter much, as in the paper.", above=0
    )

    def start(self, server: Server) -> None:
        server.state["relevance"] = torch.full((server.clients,), 1.0 / server.clients, dtype=torch.float64)

    def probabilities(self, server: Server) -> Tensor:
        """P_φ over the clients that hold samples."""
        return (server.state["relevance"][list(server.available)] / self.temperature).softmax(0)

    def choose(self, server: Server) -> Sequence[int]:
        """A draw without replacement by P_φ, made by taking the largest values of log P plus Gumbel noise."""
        luck = uniforms(server.seed, "relevant participants", server.round, np.asarray(server.available))
        gumbel = -torch.from_numpy(luck).clamp(1e-300, 1 - 1e-16).log().neg().log()
        order = (self.probabilities(server).log() + gumbel).argsort(descending=True, stable=True)
        return sorted(server.available[place] for place in order[: server.per_round].tolist())

    def forms(self, server: Server, ask: str, sent: Payload) -> dict[str, ReplyForm]:
        return model_forms(server)

    def merge(self, server: Server, replies: Replies) -> None:
        assert server.trusted is not None  # declared in `needs`
        before, models = server.weights, dict(replies)
        super().merge(server, iter(models.items()))
        gains = shapley_values(
            server.trusted,
            before,
            list(models.values()),
            permutations=self.permutations,
            generator=server.generator("orders"),
            measure=self.measure,
            truncate=self.truncate,
        )
        relevance, members = server.state["relevance"], list(models)
        relevance[members] = self.memory * relevance[members] + self.news * gains
        quality = dict(zip(server.available, zero_to_one(self.probabilities(server)).tolist(), strict=True))
        server.note(
            shapley=dict(zip(members, gains.tolist(), strict=True)),
            quality=[quality.get(client) for client in range(server.clients)],
        )
