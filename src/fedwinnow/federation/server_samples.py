"""Trusted or public samples of the server, on which it can score and train models as a client does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedwinnow.federation.client import Client
from fedwinnow.mathematics.payload import Payload
from fedwinnow.randomness import stream_key

NOBODY = -1  # the client number of the server, and the label of a sample without one


@dataclass
class ServerSamples(Client):
    """Samples on the server; public ones have no labels: all of them are -1."""

    purpose: str = ""
    seed: int = 0

    def __post_init__(self) -> None:
        self.of_the_run = self.optimizer

    def begin(self, round_number: int) -> None:
        """A new round: seed the random numbers, set the learning rate and reset the counts of computed samples."""
        self.round = round_number
        self.optimizer = self.of_the_run.at_round(round_number, self.rounds)
        key = stream_key(self.seed, f"server {self.purpose}", round_number) & (2**63 - 1)
        self.generator.manual_seed(key)
        self.forward_samples = self.backward_samples = 0

    def fit(self, *arguments: Any, **options: Any) -> None:
        """Train; layers such as dropout draw numbers that do not depend on what else ran in this process."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int(torch.randint(2**62, (1,), generator=self.generator)))
            super().fit(*arguments, **options)

    def logits(self, weights: Payload) -> Tensor:
        """The logits of a model for all samples."""
        self.model.load(weights)
        return self.predict()
