"""Local: every site trains its own model on its own samples, and nothing is exchanged. A baseline, not a federation."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import ClassVar

import torch

from fedwinnow.errors import RunError
from fedwinnow.federation.client import Client
from fedwinnow.federation.method import Exchange, Method, Replies
from fedwinnow.federation.server import Server
from fedwinnow.mathematics.payload import COUNT, Exposure, Payload, ReplyForm, Summing, is_finite


@dataclass(frozen=True)
class Local(Method):
    """Every site trains by itself on its own samples, and keeps its model: what a site has without the others."""

    name: ClassVar[str] = "local"
    sums: ClassVar[dict[str, Summing]] = {"samples": "sum"}
    own_models: ClassVar[bool] = True
    own_aggregation: ClassVar[bool] = True  # nothing is merged
    exposes: ClassVar[dict[str, Exposure]] = {"samples": "client"}
    citation: ClassVar[str] = "the baseline without federation"

    def send(self, server: Server, client: int) -> Payload:
        return {}  # there is no global model

    def forms(self, server: Server, ask: str, sent: Payload) -> dict[str, ReplyForm]:
        return {"samples": COUNT}

    def exchanges(self, server: Server) -> Generator[Exchange, Replies, None]:
        server.note(stage="train")
        yield Exchange("train", self.choose(server), lambda client: {})

    def train(self, client: Client, got: Payload) -> Payload:
        """Go on with the site's own model, which is loaded already."""
        client.fit(lambda rows, x, y: self.objective(client, rows, x, y, got), by_hand=self.by_hand(client, got))
        if not is_finite(client.model.weights):  # nobody receives the model, so nobody else would notice
            raise RunError("its model has values that are not finite; training has diverged. Lower the learning rate")
        return {"samples": torch.tensor(len(client))}
