"""A method whose clients send back what they are sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedwinnow.federation.client import Client
from fedwinnow.federation.method import Method
from fedwinnow.mathematics.payload import Payload


@dataclass(frozen=True)
class Echo(Method):
    """Sends everything back, and a long tensor where one is asked for."""

    name: ClassVar[str] = "echo"

    def train(self, client: Client, got: Payload) -> Payload:
        client.note(client=torch.tensor(client.id))
        grown = {"grown": torch.arange(int(got["length"]))} if "length" in got else {}
        return {**got, **grown}

    def spoil(self, client: Client, got: Payload) -> Payload:
        got["weights"].zero_()
        return got
