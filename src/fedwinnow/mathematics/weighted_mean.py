"""How models become one: a weighted mean that streams, and what rules need that see all models at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from fedwinnow.errors import RunError
from fedwinnow.mathematics.payload import Payload

# Models, their weights and the model that the clients started from -> one model.
Combine = Callable[[Sequence[Tensor], Sequence[float], Tensor], Tensor]
PIECE = 2**18  # parameters that are sorted at once: few enough to need little memory beside the models


class WeightedMean:
    """A running weighted mean of payloads: integer tensors take the largest value.

    Written as mean + (value - mean) * share, so that equal payloads give exactly that payload back. It never holds
    more than two models at once.
    """

    def __init__(self, keys: Iterable[str]) -> None:
        self.keys = tuple(keys)
        self.total = 0.0
        self.mean: Payload = {}

    def add(self, payload: Payload, weight: float) -> None:
        """Take one payload in; a weight of 0 leaves the mean as it is."""
        check_weight(weight)
        if weight == 0:
            return
        self.total += weight
        for key in self.keys:
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


class HeldModels:
    """All models of a round, for rules that must see them together; integer tensors take the largest value.

    Where clients send several models, each is merged by itself.
    """

    def __init__(self, combine: Combine, before: Payload) -> None:
        self.combine = combine
        self.before = before
        self.models: list[Payload] = []
        self.weights: list[float] = []

    def add(self, payload: Payload, weight: float) -> None:
        """Take one payload in; a weight of 0 leaves it out."""
        check_weight(weight)
        if weight > 0:
            self.models.append({key: payload[key] for key in self.before})
            self.weights.append(weight)

    def result(self) -> Payload:
        """The merged models; an error when nothing with a positive weight came in."""
        if not self.models:
            raise RunError("no client with a positive weight took part, so there is nothing to aggregate.")
        return {key: self.merged([model[key] for model in self.models], self.before[key]) for key in self.models[0]}

    def merged(self, tensors: list[Tensor], before: Tensor) -> Tensor:
        """One tensor of these."""
        if before.is_floating_point():
            return self.combine(tensors, self.weights, before)
        return torch.stack(tensors).amax(0)


def check_weight(weight: float) -> None:
    """No model can count less than nothing."""
    if weight < 0:
        raise RunError(f"an aggregation weight of {weight:g} was given; allowed: 0 or more.")


def weighted_mean(models: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """The weighted mean of these vectors."""
    mean = WeightedMean(keys=("weights",))
    for model, weight in zip(models, weights, strict=True):
        mean.add({"weights": model}, weight)
    return mean.result()["weights"]


def middle_mean(models: Sequence[Tensor], trimmed: int) -> Tensor:
    """The mean of every entry without so many of its smallest and its largest values."""
    merged = torch.empty_like(models[0])
    for start in range(0, len(merged), PIECE):
        piece = torch.stack([model[start : start + PIECE] for model in models]).sort(0).values
        left = piece[trimmed : len(models) - trimmed]
        merged[start : start + PIECE] = left[0] + (left - left[0]).mean(0)  # equal models give exactly that model
    return merged


def squared_distances(vectors: Sequence[Tensor]) -> Tensor:
    """The squared distance of every vector to every other."""
    found = torch.zeros(len(vectors), len(vectors), dtype=torch.float64)
    for first in range(len(vectors)):
        for second in range(first):
            found[first, second] = found[second, first] = length(vectors[first] - vectors[second]) ** 2
    return found


def length(vector: Tensor) -> float:
    """The Euclidean norm."""
    return float(torch.linalg.vector_norm(vector, dtype=torch.float64))
