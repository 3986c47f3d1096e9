"""A method whose client 1 does something that it must not do."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from fedwinnow.federation.client import Client
from fedwinnow.federation.method import Method
from fedwinnow.mathematics.payload import Payload
from fedwinnow.options import option


@dataclass(frozen=True)
class StrangeReplies(Method):
    """Client 1 misbehaves."""

    name: ClassVar[str] = "strange_replies"
    act: str = option("raise", "What client 1 does.")
    seconds: float = option(0.0, "How long every client takes.", at_least=0)

    def train(self, client: Client, got: Payload) -> Any:
        time.sleep(self.seconds)
        reply = super().train(client, got)
        acts = {
            "raise": lambda: [][1],
            "nothing": lambda: None,
            "number": lambda: reply | {"samples": 3},
            "key without a text": lambda: reply | {3: torch.zeros(1)},
            "undeclared": lambda: reply | {"labels": client.given},
            "nan": lambda: reply | {"weights": reply["weights"] * float("nan")},
            "shape": lambda: reply | {"weights": reply["weights"][1:]},
            "die": lambda: os.kill(os.getpid(), signal.SIGKILL),
            "leave": lambda: os._exit(3),
        }
        return acts[self.act]() if client.id == 1 else reply
