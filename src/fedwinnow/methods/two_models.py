"""The base of methods with two global models that teach each other; both are sent, trained and averaged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedwinnow.federation.client import Client
from fedwinnow.federation.method import Method
from fedwinnow.federation.server import Server
from fedwinnow.mathematics.payload import Exposure, FlatModel, Payload, Summing
from fedwinnow.options import option

SECOND = "second."  # prefix of the second model's keys


@dataclass(frozen=True)
class TwoModels(Method):
    """Base of methods with two models; the second starts from other random weights."""

    sums: ClassVar[dict[str, Summing]] = {**Method.sums, "second.weights": "mean", "second.counters": "mean"}
    exposes: ClassVar[dict[str, Exposure]] = {
        **Method.exposes,
        "second.weights": "model",
        "second.counters": "model",
    }

    answer: Literal["probabilities", "logits", "first"] = option(
        "probabilities", "Who is tested: both models by their mean probabilities or mean logits, or the first alone."
    )

    # --- the server's half -----------------------------------------------------------------------------------------

    def start(self, server: Server) -> None:
        assert server.fresh is not None
        server.weights |= {f"{SECOND}{key}": value for key, value in server.fresh(1).items()}

    def models(self, server: Server) -> Sequence[Payload]:
        first = {key: value for key, value in server.weights.items() if not key.startswith(SECOND)}
        if self.answer == "first":
            return [first]
        return [first, {key: server.weights[f"{SECOND}{key}"] for key in first}]

    def joined(self, answers: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(answers)).mean(0) if self.answer == "logits" else super().joined(answers)

    # --- the client's half -----------------------------------------------------------------------------------------

    def load_both(self, client: Client, got: Payload) -> tuple[FlatModel, FlatModel]:
        """Load both received models."""
        assert client.spare is not None
        second = client.spare()
        second.own_statistics = client.state.get(f"{SECOND}batch_norm")
        client.model.load(got)
        second.load(got, SECOND)
        return client.model, second

    def reply_both(self, client: Client, second: FlatModel) -> Payload:
        """Both trained models; running statistics that stay on the site are kept for the second one, too."""
        if client.training.batch_norm == "local" and len(second.statistics):
            client.state[f"{SECOND}batch_norm"] = second.statistics.clone()
        return self.reply(client) | second.payload(SECOND)

    def logits(self, client: Client, got: Payload) -> Tensor:
        return self.logits_of(client, *self.load_both(client, got))

    def logits_of(self, client: Client, first: FlatModel, second: FlatModel) -> Tensor:
        """The joined logits of the models for all samples of the site."""
        models = (first,) if self.answer == "first" else (first, second)
        return self.joined([client.predict(model=model) for model in models])
