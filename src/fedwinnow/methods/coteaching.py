"""Co-teaching: two models; each picks the samples on which it has a small loss, the other one learns from them.

Han, Yao, Yu, Niu, Xu, Hu, Tsang, Sugiyama: Co-teaching: Robust Training of Deep Neural Networks with Extremely Noisy
Labels, NeurIPS 2018. Federated as in FedRN, FedNoisy, FedGR: both models travel, t counts rounds.

| symbol | field | | symbol | field |
|---|---|---|---|---|
| τ | forget_rate | | c | exponent |
| T_k | ramp | | R(t) | `forgotten_share` |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedwinnow.errors import UsageError
from fedwinnow.federation.client import Client
from fedwinnow.federation.server import Server
from fedwinnow.mathematics.losses import mean_over
from fedwinnow.mathematics.payload import FlatModel, Payload
from fedwinnow.mathematics.small_loss import estimated_rate, forgotten_share, smallest_of
from fedwinnow.methods.two_models import SECOND, TwoModels
from fedwinnow.options import option
from fedwinnow.steps.site_labels import sample_losses


@dataclass(frozen=True)
class CoTeaching(TwoModels):
    """Two models; each learns from the samples on which the other has a small loss."""

    name: ClassVar[str] = "coteaching"
    citation: ClassVar[str] = "Han et al., Co-teaching: Robust Training with Extremely Noisy Labels, NeurIPS 2018"

    preset: Literal["paper", "code"] = option("paper", "Follow the paper, or the released codes where they differ.")
    forget_rate: float = option(
        0.2, "Share of every batch that is forgotten in the end.", symbol="τ", source="FedRN", at_least=0, at_most=1
    )
    rate_from: Literal["given", "estimated"] = option(
        "given", "Forget the given share, or the share of wrong labels by each client's mixture of losses."
    )
    ramp: int | None = option(
        None, "Rounds until the full share is forgotten; none: a fifth of all.", symbol="T_k", at_least=0
    )
    exponent: float = option(1.0, "How the share grows.", symbol="c", above=0)
    exponent_of: Literal["round", "rate"] = option(
        None, "What the exponent belongs to.", presets={"paper": "round", "code": "rate"}
    )
    disagree_from: int | None = option(
        None,
        "Co-teaching+: from this round on only samples on which the models disagree; none: never.",
        source="Yu et al., ICML 2019",
        at_least=1,
    )

    def start(self, server: Server) -> None:
        super().start(server)
        if torch.equal(server.weights["weights"], server.weights[f"{SECOND}weights"]):
            raise UsageError(
                "coteaching needs two models that start differently, but --model comes with all of its weights, so "
                "both would always stay equal. Give a model whose weights are drawn, or one with a new head."
            )

    def train(self, client: Client, got: Payload) -> Payload:
        first, second = self.load_both(client, got)
        share = self.share(client, self.rate(client, first, second))  # R(t), line 8
        small = torch.zeros(len(client), dtype=torch.bool, device=client.given.device)

        def objective(rows: Tensor, x: Tensor, y: Tensor) -> Tensor:
            answers = first.module(x), second.module(x)
            losses = [self.criterion(answer, y, client.class_counts) for answer in answers]
            pool = self.pool(client, *answers)
            # Algorithm 1, lines 4-5: the samples with the smallest losses under each model
            by_first, by_second = (smallest_of(loss, pool, share) for loss in losses)
            small[rows.to(y.device)] = by_first
            return mean_over(losses[0], by_second) + mean_over(losses[1], by_first)  # lines 6-7

        client.fit(objective, model=(first, second))
        client.note(selected=small)
        return self.reply_both(client, second)

    def share(self, client: Client, rate: float) -> float:
        """R(t): the share of a batch that is forgotten in this round."""
        ramp = round(client.rounds / 5) if self.ramp is None else self.ramp
        of_rate = self.exponent_of == "rate"
        return forgotten_share(client.round, rate, ramp, exponent=self.exponent, of_rate=of_rate)

    def rate(self, client: Client, first: FlatModel, second: FlatModel) -> float:
        """tau: given, or estimated with the received models."""
        if self.rate_from == "given":
            return self.forget_rate
        return estimated_rate(sample_losses(self.logits_of(client, first, second), client.given))

    def pool(self, client: Client, first: Tensor, second: Tensor) -> Tensor:
        """A mask of what may be kept of a batch: where the models disagree, or all samples if they agree on all."""
        if self.disagree_from is None or client.round < self.disagree_from:
            return torch.ones(len(first), dtype=torch.bool, device=first.device)
        apart = first.argmax(1) != second.argmax(1)
        return apart | ~apart.any()
