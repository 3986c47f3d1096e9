"""The server as a method sees it: the global model, the method's memory, who is there; never a sample of a site."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fedwinnow.federation.flat import FlatModel
from fedwinnow.federation.payload import Payload
from fedwinnow.randomness import stream_key, uniforms


@dataclass
class Server:
    """Everything the server knows."""

    clients: int  # how many sites there are
    available: tuple[int, ...]  # those that hold samples
    participation: float
    rounds: int
    seed: int
    classes: int
    weights: Payload  # the global model
    model: FlatModel  # scratch for methods that compute on the server
    round: int = 0  # 1, 2, ... while a round is played
    state: Payload = field(default_factory=dict)  # the method's memory; it is in the checkpoint
    trusted: tuple[torch.Tensor, torch.Tensor] | None = None  # stored samples and labels, where the user gave some
    notes: dict[str, Any] = field(default_factory=dict)  # goes into this round's line of rounds.jsonl

    @property
    def per_round(self) -> int:
        """How many clients take part in an ordinary round: at least one, at most all."""
        return participants(self.participation, self.clients, len(self.available))

    def sample(self, count: int | None = None, among: Sequence[int] | None = None) -> list[int]:
        """Clients drawn without replacement, ascending; the same for the same seed and round."""
        pool = np.asarray(self.available if among is None else among)
        luck = uniforms(self.seed, "participants", self.round, pool)
        return sorted(pool[np.argsort(luck, kind="stable")][: self.per_round if count is None else count].tolist())

    def generator(self, purpose: str) -> torch.Generator:
        """Random numbers for the server's own use in this round."""
        key = stream_key(self.seed, f"server {purpose}", self.round)
        return torch.Generator().manual_seed(key & (2**63 - 1))

    def note(self, **facts: Any) -> None:
        """Say something about this round for the log, for example the stage."""
        self.notes.update(facts)


def participants(participation: float, clients: int, available: int) -> int:
    """A share of the clients as a number: rounded down, at least one, at most those that hold samples."""
    return min(max(int(np.floor(participation * clients + 1e-9)), 1), available)
