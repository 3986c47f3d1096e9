"""The server's own bench: trusted or public samples, on which it may score and train models as a client does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedwinnow.federation.client import Client
from fedwinnow.mathematics.payload import Payload
from fedwinnow.randomness import stream_key

NOBODY = -1  # the number of a client that is none, and the label of a sample that has none


@dataclass
class ServerSamples(Client):
    """Samples on the server; public ones have no labels: all of them are -1."""

    purpose: str = ""
    seed: int = 0

    def begin(self, round_number: int) -> None:
        """A new round: random numbers of its own, whatever was drawn before, and nothing computed yet."""
        self.round = round_number
        key = stream_key(self.seed, f"server {self.purpose}", round_number) & (2**63 - 1)
        self.generator.manual_seed(key)
        self.forward_samples = self.backward_samples = 0

    def fit(self, *arguments: Any, **options: Any) -> None:
        """Train; layers that draw random numbers draw the same ones, whoever else has used theirs in this process."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int(torch.randint(2**62, (1,), generator=self.generator)))
            super().fit(*arguments, **options)

    def logits(self, weights: Payload) -> Tensor:
        """What a model says about all samples."""
        self.model.load(weights)
        return self.predict()
