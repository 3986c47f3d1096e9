"""ARFL: the server regresses each parameter on its rank among the clients; clients far from the line weigh less.

Fu, Xie, Li, Chen: Attack-Resistant Federated Learning with Residual-based Reweighting, arXiv 1912.11464, 2019.

| symbol | field |
|---|---|
| λ | reach |
| δ | threshold |

Local training is that of FedAvg. For every parameter, the values of the round's clients are sorted, and repeated-median
regression, which up to half of the clients cannot move, fits a line to them. A client's weight at a parameter falls
with its residual. The weight of its model is the sum over all parameters, in which those with differing weights count
more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedwinnow.federation.method import Method, Replies, model_forms
from fedwinnow.federation.server import Server
from fedwinnow.mathematics.aggregators import WeightedMean
from fedwinnow.mathematics.payload import Payload, ReplyForm, Summing
from fedwinnow.options import option

BLOCK = 2**20  # numbers that are worked on at once
FEWEST = 3  # a line through two values has no residuals
NORMAL = 1.4826  # times the median of absolute residuals: the standard deviation, if they are Gaussian


@dataclass(frozen=True)
class Arfl(Method):
    """Robust averaging: clients whose parameters lie off a repeated-median line weigh less."""

    name: ClassVar[str] = "arfl"
    sums: ClassVar[dict[str, Summing]] = {}
    citation: ClassVar[str] = "Fu et al., Attack-Resistant Federated Learning, arXiv 1912.11464"
    own_aggregation: ClassVar[bool] = True

    reach: float = option(2.0, "Residuals up to reach * sqrt(2 / clients) weigh fully.", symbol="λ", above=0)
    threshold: float = option(0.1, "A value of less weight is moved onto the line.", symbol="δ", at_least=0, at_most=1)
    power: float = option(2.0, "The summed weights are raised to this power.", source="code", at_least=0)
    by_size: bool = option(False, "Also weigh clients by their number of samples, which the method ignores.")

    def forms(self, server: Server, ask: str, sent: Payload) -> dict[str, ReplyForm]:
        return model_forms(server)

    def merge(self, server: Server, replies: Replies) -> None:
        models = dict(replies)  # all together, because every parameter is compared over the clients
        corrected = torch.stack([reply["weights"] for reply in models.values()])
        shares = self.shares(corrected)
        if self.by_size:
            shares = shares * torch.tensor([float(reply["samples"]) for reply in models.values()])
        mean = WeightedMean(server.weights)
        for share, weights, reply in zip(shares.tolist(), corrected, models.values(), strict=True):
            mean.add({**reply, "weights": weights}, share)
        server.weights = mean.result()
        weighed = dict(zip(models, (shares / shares.sum()).tolist(), strict=True))
        server.note(client_weights={client: round(share, 4) for client, share in weighed.items()})

    def shares(self, models: Tensor) -> Tensor:
        """The weight of each model (clients x parameters); values far from the line are corrected in place."""
        clients = len(models)
        total = torch.zeros(clients, dtype=torch.float64)
        for block in torch.split(models, max(1, BLOCK // clients), dim=1) if clients >= FEWEST else ():
            ordered, order = block.double().sort(dim=0, stable=True)
            line = repeated_median_line(ordered)
            weight = residual_weights(ordered - line, self.reach)
            block.scatter_(0, order, torch.where(weight < self.threshold, line, ordered).to(block))
            confidence = weight.std(0)  # 0 for a parameter on which all clients have the same weight
            total += torch.empty_like(weight).scatter_(0, order, weight * confidence).sum(1).cpu()
        if float(total.max()) == 0:
            return torch.ones_like(total)
        return (total / total.max()) ** self.power


def repeated_median_line(ordered: Tensor) -> Tensor:
    """The line through ascending values (clients x parameters) over the ranks 0, 1, ..., at every rank.

    Its slope is the median, over the values, of the median slope to all others.
    """
    ranks = torch.arange(len(ordered), dtype=ordered.dtype, device=ordered.device).unsqueeze(1)
    slopes = []
    for place in range(len(ordered)):
        rise = ordered[place] - without(ordered, place)
        slopes.append(middle((rise / (place - without(ranks, place))).sort(0).values))
    slope = middle(torch.stack(slopes).sort(0).values)
    return middle(ordered) + slope * (ranks - ranks.mean())


def residual_weights(residuals: Tensor, reach: float) -> Tensor:
    """(h / e) clip(e / h, -K, K), that is min(1, K h / |e|): e is the standardised residual, h its leverage."""
    clients = len(residuals)
    ranks = torch.arange(clients, dtype=residuals.dtype, device=residuals.device).unsqueeze(1)
    away = (ranks - ranks.mean()).square()
    leverage = (1 - 1 / clients - away / away.sum()).sqrt()  # sqrt(1 - H_ii), H the hat matrix of [1, rank]
    usual = middle(residuals.abs().sort(0).values[1:])
    scale = NORMAL * (1 + 5 / (clients - 1)) * usual + 1e-7
    limit = reach * math.sqrt(2 / clients)
    return (limit * leverage * scale / residuals.abs()).clamp(max=1.0)


def without(values: Tensor, place: int) -> Tensor:
    """All rows except one."""
    return torch.cat([values[:place], values[place + 1 :]])


def middle(ordered: Tensor) -> Tensor:
    """The median of sorted rows; of an even number, the mean of the two in the middle."""
    count = len(ordered)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
