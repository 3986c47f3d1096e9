"""FedLSR: local training regularises itself: predictions of two views are mixed, sharpened and kept alike.

Jiang, Sun, Wang, Liu: Towards Federated Learning against Noisy Labels via Local Self-Regularization, CIKM 2022.

| symbol | field | | symbol | field |
|---|---|---|---|---|
| γ | gamma | | T_s | sharpening |
| t_w | ramp | | 1/T_d | distil_scale |
| λ_e | lambda_e | | μ ~ Beta(a, a) | mixing (a) |

The server is that of FedAvg. A sharpened mixture of two predictions is hard to talk out of what it is sure of, and the
divergence between the views keeps it from being sure too easily. FedLSR+ adds the entropy of the predictions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedwinnow.federation.client import Client
from fedwinnow.federation.method import Method, beta_draw
from fedwinnow.mathematics.distillation import jensen_shannon
from fedwinnow.mathematics.mild_views import mild_view
from fedwinnow.mathematics.payload import Payload
from fedwinnow.options import option

SMALLEST = 1e-6  # a probability below counts as this


@dataclass(frozen=True)
class FedLsr(Method):
    """FedAvg whose local loss mixes and sharpens the predictions of two views of a sample, and keeps them alike."""

    name: ClassVar[str] = "fedlsr"
    citation: ClassVar[str] = "Jiang et al., Towards Federated Learning against Noisy Labels, CIKM 2022"

    preset: Literal["paper", "code"] = option("paper", "Follow the paper, or its released code where they differ.")
    gamma: float = option(0.4, "Weight of the divergence between the views.", symbol="γ", at_least=0)
    ramp: int | None = option(
        None, "Rounds until the divergence has its full weight; none: a fifth of all.", symbol="t_w", at_least=0
    )
    sharpening: float = option(0.5, "Temperature of the mixed prediction.", symbol="T_s", above=0)
    distil_scale: float = option(
        3.0, "Logits times this are compared between the views.", symbol="1/T_d", source="the authors", above=0
    )
    mixing: float = option(1.0, "The two predictions are mixed with a share from Beta(mixing, mixing).", above=0)
    lambda_e: float | None = option(
        None,
        "Weight of the entropy of predictions: above 0 it is FedLSR+.",
        symbol="λ_e",
        at_least=0,
        presets={"paper": 0.0, "code": 0.6},
    )
    sharpened_loss: Literal["cross_entropy", "double_softmax"] | None = option(
        None,
        "The loss of the sharpened prediction; double_softmax takes it for logits.",
        presets={"paper": "cross_entropy", "code": "double_softmax"},
    )
    divergence: Literal["samples", "entries"] | None = option(
        None,
        "The divergence as a mean over samples, or also over the classes.",
        presets={"paper": "samples", "code": "entries"},
    )
    entropy: Literal["views", "first_twice"] | None = option(
        None,
        "The entropy of both views' predictions, or of the softmax of the first one's.",
        presets={"paper": "views", "code": "first_twice"},
    )
    one_draw: bool | None = option(
        None, "The second view changes a whole batch in the same way.", presets={"paper": False, "code": True}
    )

    def objective(self, client: Client, rows: Tensor, x: Tensor, y: Tensor, got: Payload) -> Tensor:
        first, second = client.model.module(x), client.model.module(self.second_view(client, rows))
        client.forward_samples += len(x)
        client.backward_samples += len(x)
        share = beta_draw(self.mixing, client.generator)
        loss = self.sharpened(client, share, first, second, y)
        alike = [(self.distil_scale * logits).softmax(1).clamp(min=SMALLEST) for logits in (first, second)]
        away = jensen_shannon(*alike) / (client.classes if self.divergence == "entries" else 1)
        loss = loss + self.weight(client) * away
        return loss + self.lambda_e * self.unsureness(*alike) if self.lambda_e else loss

    def second_view(self, client: Client, rows: Tensor) -> Tensor:
        """The same samples, mildly changed; what is no image stays as it is."""
        stored = next(client.stored([rows]))
        if client.input_step.kind == "images":
            stored = mild_view(stored, client.generator, together=bool(self.one_draw))
        return client.plain(stored)

    def sharpened(self, client: Client, share: float, first: Tensor, second: Tensor, y: Tensor) -> Tensor:
        """The loss of p_s, which is proportional to (mu p_1 + (1 - mu) p_2)^(1 / T_s)."""
        mixed = torch.logaddexp(
            first.log_softmax(1) + math.log(max(share, SMALLEST)),
            second.log_softmax(1) + math.log(max(1 - share, SMALLEST)),
        )
        scores = mixed / self.sharpening  # their softmax is p_s
        if self.sharpened_loss == "double_softmax":
            scores = scores.softmax(1)
        return self.criterion.mean(scores, y, client.class_counts)

    def weight(self, client: Client) -> float:
        """gamma_t: from 0 in the first round to gamma after t_w rounds."""
        length = client.rounds / 5 if self.ramp is None else self.ramp
        return self.gamma * min((client.round - 1) / length, 1.0) if length else self.gamma

    def unsureness(self, first: Tensor, second: Tensor) -> Tensor:
        """L_e of FedLSR+."""
        if self.entropy == "first_twice":
            first = second = first.softmax(1)
        return -(first * first.log() + second * second.log()).sum(1).mean() / 2
