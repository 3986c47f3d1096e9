"""A method that uses all of the contract: state, two exchanges per round with different clients, keys of its own."""

from __future__ import annotations

import random
import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import ClassVar

import torch

from fedwinnow.federation.client import Client
from fedwinnow.federation.method import Exchange, Method, Replies
from fedwinnow.federation.server import Server
from fedwinnow.mathematics.payload import Exposure, Payload
from fedwinnow.options import option

LUCK = random.SystemRandom()  # delays must not come from anything that a seed decides


@dataclass(frozen=True)
class TwoQuestions(Method):
    """First everybody in a second group is asked for losses, then a first group trains."""

    name: ClassVar[str] = "two_questions"
    exposes: ClassVar[dict[str, Exposure]] = {**Method.exposes, "losses": "client", "visits": "client"}
    stages: ClassVar[tuple[str, ...]] = ("ask and train",)
    delay: float = option(0.0, "The longest random delay of a client, in seconds.", at_least=0)

    def start(self, server: Server) -> None:
        server.state["losses"] = torch.zeros(server.clients, server.classes)

    def exchanges(self, server: Server) -> Generator[Exchange, Replies, None]:
        server.note(stage="ask and train")
        asked = server.sample(4)
        replies = yield Exchange("measure", asked, lambda client: self.send(server, client))
        for client, reply in replies:
            server.state["losses"][client] = reply["losses"]
        others = [client for client in server.available if client not in asked][:5]
        losses = server.state["losses"].clone()
        replies = yield Exchange("train", others, lambda client: dict(server.weights) | {"losses": losses[client]})
        self.merge(server, replies)

    def measure(self, client: Client, got: Payload) -> Payload:
        self.dawdle()
        client.model.load(got)
        losses = torch.nn.functional.cross_entropy(client.predict(), client.given, reduction="none")
        client.state["visits"] = client.state.get("visits", torch.tensor(0)) + 1
        client.state["losses"] = losses
        total = torch.zeros(client.classes).index_add_(0, client.given, losses)
        return {"losses": total, "visits": client.state["visits"]}

    def train(self, client: Client, got: Payload) -> Payload:
        self.dawdle()
        seen = client.state.get("losses", torch.zeros(len(client)))
        client.note(selected=seen <= seen.median())
        client.state["visits"] = client.state.get("visits", torch.tensor(0)) + 10
        return super().train(client, got) | {"losses": got["losses"] + seen.mean()}

    def dawdle(self) -> None:
        time.sleep(LUCK.random() * self.delay)
