"""A method whose clients and server remember something, in a file of its own; and a watcher that breaks runs off."""

from __future__ import annotations

import pytest

from fedwinnow.cli import main
from fedwinnow.experiment.play import Watcher

REMEMBERING = '''
from dataclasses import dataclass
from typing import ClassVar, Literal
import torch
from fedwinnow.federation.method import Method
from fedwinnow.options import option


@dataclass(frozen=True)
class Remembering(Method):
    """Counts visits at the clients and rounds at the server."""

    name: ClassVar[str] = "remembering"
    pace: Literal["slow", "fast"] = option("fast", "Nothing.")
    limit: float | None = option(2.0, "Nothing.")

    def start(self, server):
        server.state["rounds"] = torch.zeros(1)

    def train(self, client, got):
        client.state["visits"] = client.state.get("visits", torch.zeros(1)) + 1
        return super().train(client, got)

    def merge(self, server, replies):
        server.state["rounds"] += 1
        super().merge(server, replies)
'''


def command(words: str) -> int:
    """The exit code of a command line."""
    with pytest.raises(SystemExit) as end:
        main(words.split())
    return int(end.value.code)


class At(Watcher):
    """Does something after one round."""

    def __init__(self, number, action):
        self.number, self.action = number, action

    def round(self, row):
        if row["round"] == self.number:
            self.action()


def interrupt() -> None:
    """What Ctrl-C does."""
    raise KeyboardInterrupt
