"""The merge under --privacy client: the mean of clipped updates, every site with the same weight, and noise."""

from __future__ import annotations

from collections.abc import Callable

import torch

from fedwinnow.federation.server import Server
from fedwinnow.mathematics.aggregators import Collector
from fedwinnow.mathematics.payload import Payload
from fedwinnow.mathematics.private_gradients import clipped_update, whole_update
from fedwinnow.mathematics.private_noise import FromSeed, FromSystem, Randomness, with_noise
from fedwinnow.randomness import stream_key


class NoisyMean:
    """Adds up clipped updates; noise of `noise` times the clip comes on the sum, which is divided by `sites`.

    `sites` is how many were asked, not how many answered: otherwise one site's absence would move the mean of others.
    Only what is trained moves.
    """

    def __init__(
        self, before: Payload, trainable: int, clip: float, noise: float, sites: int, randomness: Randomness
    ) -> None:
        self.before, self.trainable, self.clip, self.noise, self.sites = before, trainable, clip, noise, sites
        self.randomness = randomness
        self.total = torch.zeros(trainable, dtype=torch.int64)  # in fine units of the clip

    def add(self, payload: Payload, weight: float) -> None:
        """Add one site's update; its weight does not count."""
        start = self.before["weights"][: self.trainable]
        self.total += whole_update(payload["weights"][: self.trainable] - start, self.clip).cpu()

    def result(self) -> Payload:
        """The new global model."""
        noisy = with_noise(self.total, self.noise, self.clip, self.randomness)
        merged = {key: value.clone() for key, value in self.before.items()}
        merged["weights"][: self.trainable] += (noisy / self.sites).to(torch.float32)
        return merged


def noisy_means(server: Server, clip: float, noise: float, *, simulated: bool) -> Callable[[], Collector]:
    """A function that begins the merge of the server's current round."""

    def begin() -> Collector:
        key = stream_key(server.seed, "privacy of sites", server.round)
        randomness: Randomness = FromSeed(key) if simulated else FromSystem()
        return NoisyMean(server.weights, server.model.trainable, clip, noise, server.per_round, randomness)

    return begin


def clipped_reply(reply: Payload, sent: Payload, trainable: int, clip: float) -> Payload:
    """A site's reply with its update clipped before it leaves; what is not trained stays as it was sent."""
    start = sent["weights"].to(reply["weights"].device)
    clipped = start.clone()
    clipped[:trainable] += clipped_update(reply["weights"][:trainable] - start[:trainable], clip)
    return {**reply, "weights": clipped}
