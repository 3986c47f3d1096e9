"""Averages that never hold more than two models at once."""

from __future__ import annotations

import torch
from torch import Tensor

from fedwinnow.errors import RunError
from fedwinnow.federation.payload import Payload


class WeightedMean:
    """A running weighted mean of payloads: integer tensors take the largest value.

    Written as mean + (value - mean) * share, so that equal payloads give exactly that payload back.
    """

    def __init__(self, keys: tuple[str, ...] = ("weights", "counters")) -> None:
        self.keys = keys
        self.total = 0.0
        self.mean: Payload = {}

    def add(self, payload: Payload, weight: float) -> None:
        """Take one payload in; a weight of 0 leaves the mean as it is."""
        if weight < 0:
            raise RunError(f"an aggregation weight of {weight:g} was given; allowed: 0 or more.")
        if weight == 0:
            return
        self.total += weight
        for key in self.keys:
            if key in payload:
                self.mean[key] = self.combine(self.mean.get(key), payload[key], weight / self.total)

    @staticmethod
    def combine(mean: Tensor | None, value: Tensor, share: float) -> Tensor:
        """The new mean of one tensor."""
        if mean is None:
            return value.clone()
        if not value.is_floating_point():
            return torch.maximum(mean, value)
        return mean.add_(value - mean, alpha=share)

    def result(self) -> Payload:
        """The mean; an error when nothing with a positive weight came in."""
        if self.total == 0:
            raise RunError("no client with a positive weight took part, so there is nothing to average.")
        return self.mean
