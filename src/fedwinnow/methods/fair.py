"""FAIR: choose the clients of the highest expected quality, and weight their models by quality.

Deng, Lyu, Ren, Chen, Yang, Zhou, Zhang: FAIR: Quality-Aware Federated Learning with Precise User Incentive and Model
Aggregation, INFOCOM 2021; Deng et al.: Improving Federated Learning with Quality-Aware User Incentive and Auto-Weighted
Model Aggregation, TPDS 2022.

| symbol | field or state | | symbol | field or state |
|---|---|---|---|---|
| q_k | quality of the round | | ρ | forgetting |
| q̂_k | server.state["expected"] | | ε | explore |

Without the papers' auction: all bids are equal, so the clients with the largest expected quality are chosen. Quality is
how much local training lowered the loss, on trusted samples of the server (as in FedES's comparison) or on the client's
own samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedwinnow.federation.client import Client
from fedwinnow.federation.method import Method, Replies, model_forms
from fedwinnow.federation.server import Server
from fedwinnow.mathematics.aggregators import WeightedMean
from fedwinnow.mathematics.payload import Exposure, Payload, ReplyForm, Summing
from fedwinnow.mathematics.scaling import zero_to_one
from fedwinnow.mathematics.two_gaussians import exact
from fedwinnow.options import option
from fedwinnow.steps.contributions import learned_shares, loss_drops
from fedwinnow.steps.site_labels import sample_losses


@dataclass(frozen=True)
class Fair(Method):
    """Clients chosen and weighted by their quality: how much their training lowers the loss on trusted samples."""

    name: ClassVar[str] = "fair"
    sums: ClassVar[dict[str, Summing]] = {}
    citation: ClassVar[str] = "Deng et al., FAIR: Quality-Aware Federated Learning, INFOCOM 2021"
    stages: ClassVar[tuple[str, ...]] = ("visit", "select")
    needs: ClassVar[tuple[str, ...]] = ("trusted_data",)
    own_aggregation: ClassVar[bool] = True
    exposes: ClassVar[dict[str, Exposure]] = {**Method.exposes, "drop": "client"}
    forwards: ClassVar[dict[str, str]] = {
        "weights": "if no client of a round lowered the loss: the best model alone becomes the global one",
        "counters": "with it",
    }
    asks: ClassVar[str] = "all sites in turn in the first passes"

    quality: Literal["trusted", "local"] = option(
        "trusted", "Measure the loss on the server's trusted samples, or on the client's own."
    )
    weigh: Literal["quality", "samples", "learned"] = option(
        "quality",
        "Weights: samples times quality, without clients that raised the loss; samples; or learned on trusted samples.",
    )
    forgetting: float = option(0.8, "Share of the old expectation that is kept.", symbol="ρ", at_least=0, at_most=1)
    explore: float = option(0.1, "Chance that a place goes to a random client.", symbol="ε", at_least=0, at_most=1)
    passes: int = option(1, "Passes over all clients before the best are chosen.", at_least=0)
    steps: int = option(50, "Steps of learning the weights.", source="own", at_least=1)
    rate: float = option(0.01, "Learning rate of the weights, with Adam.", source="own", above=0)

    def needed(self) -> tuple[str, ...]:
        return () if self.quality == "local" and self.weigh != "learned" else self.needs

    # --- the server's half -----------------------------------------------------------------------------------------

    def start(self, server: Server) -> None:
        server.state["expected"] = torch.full((server.clients,), torch.nan, dtype=torch.float64)

    def forms(self, server: Server, ask: str, sent: Payload) -> dict[str, ReplyForm]:
        local = {"drop": ReplyForm()} if self.quality == "local" else {}
        return model_forms(server) | local

    def visiting(self, server: Server) -> bool:
        """Whether the first passes over all clients still go on."""
        return server.round <= self.passes * server.rounds_per_pass

    def question(self, server: Server) -> tuple[str, str]:
        return ("visit" if self.visiting(server) else "select"), "train"

    def choose(self, server: Server) -> Sequence[int]:
        if self.visiting(server):
            return sorted(server.turn(server.round - 1))
        count, generator = server.per_round, server.generator("exploration")
        curious = int((torch.rand(count, generator=generator) < self.explore).sum())
        ranked = [server.available[place] for place in self.expected(server).argsort(descending=True, stable=True)]
        best, others = ranked[: count - curious], ranked[count - curious :]
        return sorted([*best, *server.sample(curious, others)])

    def expected(self, server: Server) -> Tensor:
        """q̂ of the clients that hold samples; the mean of the others for a client that was never seen."""
        known = server.state["expected"][list(server.available)]
        return known.where(~known.isnan(), torch.nan_to_num(known.nanmean()))

    def merge(self, server: Server, replies: Replies) -> None:
        before, models = server.weights, dict(replies)
        qualities = self.qualities(server, before, models)
        weights = self.weights(server, models, qualities)
        if self.weigh == "learned":
            qualities = weights  # of the TPDS version: the learned weight is the quality
        mean = WeightedMean(server.weights)
        for reply, weight in zip(models.values(), weights.tolist(), strict=True):
            mean.add(reply, weight)
        server.weights = mean.result()
        known = server.state["expected"]
        for client, quality in zip(models, qualities.tolist(), strict=True):
            old = float(known[client])
            known[client] = quality if old != old else self.forgetting * old + (1 - self.forgetting) * quality
        shown = dict(zip(server.available, zero_to_one(self.expected(server)).tolist(), strict=True))
        server.note(
            loss_drop=dict(zip(models, qualities.tolist(), strict=True)),
            quality=[shown.get(client) for client in range(server.clients)],
        )

    def qualities(self, server: Server, before: Payload, models: dict[int, Payload]) -> Tensor:
        """q_k = L(w) - L(w_k)."""
        if self.quality == "local":
            return torch.tensor([float(reply["drop"]) for reply in models.values()], dtype=torch.float64)
        assert server.trusted is not None  # see `needed`
        return loss_drops(server.trusted, before, list(models.values()))

    def weights(self, server: Server, models: dict[int, Payload], qualities: Tensor) -> Tensor:
        """The weight of each model; if no client lowered the loss, the best one alone."""
        sizes = torch.tensor([float(reply["samples"]) for reply in models.values()], dtype=torch.float64)
        if self.weigh == "samples":
            return sizes
        if self.weigh == "learned":
            assert server.trusted is not None  # see `needed`
            vectors = [reply["weights"] for reply in models.values()]
            return learned_shares(server.trusted, vectors, sizes.tolist(), steps=self.steps, rate=self.rate)
        if not bool((qualities > 0).any()):
            best = torch.zeros_like(sizes)
            best[qualities.argmax()] = 1.0
            return best
        return sizes * qualities.clamp(min=0)

    # --- the client's half -----------------------------------------------------------------------------------------

    def train(self, client: Client, got: Payload) -> Payload:
        if self.quality != "local":
            return super().train(client, got)
        client.model.load(got)
        before = exact(sample_losses(client.predict(), client.given)).mean()
        reply = super().train(client, got)
        after = exact(sample_losses(client.predict(), client.given)).mean()
        return reply | {"drop": (before - after).cpu().reshape(1)}
