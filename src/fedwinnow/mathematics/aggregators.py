"""How the models of a round become one: a weighted mean that streams, and the other rules that a user can choose."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from fedwinnow.errors import RunError
from fedwinnow.mathematics.payload import Payload
from fedwinnow.options import Part, option

# Models, their weights and the model that the clients started from -> one model.
Combine = Callable[[Sequence[Tensor], Sequence[float], Tensor], Tensor]
PIECE = 2**18  # parameters that are sorted at once: few enough to need little memory beside the models


class WeightedMean:
    """A running weighted mean of payloads; of integer tensors it keeps the largest value.

    It computes mean + (value - mean) * share, so that equal payloads give exactly that payload back. It never holds
    more than two models at once.
    """

    def __init__(self, keys: Iterable[str]) -> None:
        self.keys = tuple(keys)
        self.total = 0.0
        self.mean: Payload = {}

    def add(self, payload: Payload, weight: float) -> None:
        """Add one payload; a weight of 0 leaves the mean as it is."""
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
        """The mean; an error when no payload had a positive weight."""
        if self.total == 0:
            raise RunError("no client with a positive weight took part, so there is nothing to average.")
        return self.mean


class HeldModels:
    """All models of a round, for rules that need them together; of integer tensors it keeps the largest value.

    Where clients send several models, each is merged by itself.
    """

    def __init__(self, combine: Combine, before: Payload) -> None:
        self.combine = combine
        self.before = before
        self.models: list[Payload] = []
        self.weights: list[float] = []

    def add(self, payload: Payload, weight: float) -> None:
        """Add one payload; a weight of 0 leaves it out."""
        check_weight(weight)
        if weight > 0:
            self.models.append({key: payload[key] for key in self.before})
            self.weights.append(weight)

    def result(self) -> Payload:
        """The merged models; an error when no payload had a positive weight."""
        if not self.models:
            raise RunError("no client with a positive weight took part, so there is nothing to aggregate.")
        return {key: self.merged([model[key] for model in self.models], self.before[key]) for key in self.models[0]}

    def merged(self, tensors: list[Tensor], before: Tensor) -> Tensor:
        """The merged tensor."""
        if before.is_floating_point():
            return self.combine(tensors, self.weights, before)
        return torch.stack(tensors).amax(0)


def check_weight(weight: float) -> None:
    """Refuse a negative weight."""
    if weight < 0:
        raise RunError(f"an aggregation weight of {weight:g} was given; allowed: 0 or more.")


def weighted_mean(models: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """The weighted mean of these vectors."""
    mean = WeightedMean(keys=("weights",))
    for model, weight in zip(models, weights, strict=True):
        mean.add({"weights": model}, weight)
    return mean.result()["weights"]


def middle_mean(models: Sequence[Tensor], trimmed: int) -> Tensor:
    """The mean of every entry, without the `trimmed` smallest and the `trimmed` largest values."""
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


class Collector(Protocol):
    """Takes the models of a round one by one and returns the merged one."""

    def add(self, payload: Payload, weight: float) -> None:
        """One client's model; a weight of 0 leaves it out."""

    def result(self) -> Payload:
        """The merged model."""


@dataclass(frozen=True)
class Aggregator(Part):
    """Base of every aggregation rule."""

    def chooses(self) -> str:
        """When the merged model is one site's model unchanged, although others took part; empty text: never."""
        return ""

    def collect(self, before: Payload, trainable: int) -> Collector:
        """Begin a merge; `before` is what the clients started from, `trainable` the number of trained parameters."""
        return HeldModels(lambda models, weights, start: self.combine(models, weights, start, trainable), before)

    @abstractmethod
    def combine(self, models: Sequence[Tensor], weights: Sequence[float], before: Tensor, trainable: int) -> Tensor:
        """Merge the models into one; there is at least one model, and every weight is above 0."""


@dataclass(frozen=True)
class Mean(Aggregator):
    """The mean weighted by the number of samples: FedAvg. It never holds more than two models."""

    name: ClassVar[str] = "mean"
    citation: ClassVar[str] = "McMahan et al., Communication-Efficient Learning of Deep Networks, AISTATS 2017"

    def collect(self, before: Payload, trainable: int) -> Collector:
        return WeightedMean(before)

    def combine(self, models: Sequence[Tensor], weights: Sequence[float], before: Tensor, trainable: int) -> Tensor:
        return weighted_mean(models, weights)


@dataclass(frozen=True)
class Median(Aggregator):
    """The median of every parameter; of an even number of models the mean of the two in the middle."""

    name: ClassVar[str] = "median"
    citation: ClassVar[str] = "Yin et al., Byzantine-Robust Distributed Learning, ICML 2018"

    def combine(self, models: Sequence[Tensor], weights: Sequence[float], before: Tensor, trainable: int) -> Tensor:
        return middle_mean(models, (len(models) - 1) // 2)


@dataclass(frozen=True)
class TrimmedMean(Aggregator):
    """The mean of every parameter without its largest and smallest values; all models count alike."""

    name: ClassVar[str] = "trimmed_mean"
    citation: ClassVar[str] = "Yin et al., Byzantine-Robust Distributed Learning, ICML 2018"
    share: float = option(
        0.2,
        "Share of the models left out on each side, rounded down; where nothing would be left, the median remains.",
        symbol="β",
        at_least=0,
        at_most=0.5,
    )

    def combine(self, models: Sequence[Tensor], weights: Sequence[float], before: Tensor, trainable: int) -> Tensor:
        return middle_mean(models, min(rounded_down(self.share, len(models)), (len(models) - 1) // 2))


@dataclass(frozen=True)
class Krum(Aggregator):
    """The one model that is nearest to its nearest neighbours."""

    name: ClassVar[str] = "krum"
    citation: ClassVar[str] = "Blanchard et al., Machine Learning with Adversaries, NeurIPS 2017"
    faulty: float = option(
        0.2,
        "Share of the models taken to be bad, rounded down, and never more than (n - 3) / 2 of n.",
        symbol="f/n",
        at_least=0,
        at_most=0.5,
    )

    def assumed(self, count: int) -> int:
        """f: how many of `count` models are taken to be bad; the proof needs 2f + 2 < n."""
        return max(0, min(rounded_down(self.faulty, count), (count - 3) // 2))

    def kept(self, count: int) -> int:
        """How many models are averaged."""
        return 1

    def chooses(self) -> str:
        return "always: the model that is chosen becomes the global one"

    def combine(self, models: Sequence[Tensor], weights: Sequence[float], before: Tensor, trainable: int) -> Tensor:
        count = len(models)
        if count < 3:  # of two models neither can be called the outlier
            return weighted_mean(models, weights)
        ordered = squared_distances([model[:trainable] for model in models]).sort(1).values
        scores = ordered[:, 1 : count - self.assumed(count) - 1].sum(1)  # the n - f - 2 nearest; the first is itself
        # Among equal scores (of three models, two are each other's nearest) the one nearer to all the others wins.
        ranked = sorted(zip(scores.tolist(), ordered.sum(1).tolist(), range(count), strict=True))
        best = sorted(place for *_, place in ranked[: self.kept(count)])
        return weighted_mean([models[place] for place in best], [1.0] * len(best))


@dataclass(frozen=True)
class MultiKrum(Krum):
    """The mean of the models that are nearest to their nearest neighbours."""

    name: ClassVar[str] = "multi_krum"
    keep: int | None = option(
        None, "How many models are averaged; none: all but those taken to be bad.", symbol="m", at_least=1
    )

    def kept(self, count: int) -> int:
        return count - self.assumed(count) if self.keep is None else min(self.keep, count)

    def chooses(self) -> str:
        return super().chooses() if self.keep == 1 else ""


@dataclass(frozen=True)
class GeometricMedian(Aggregator):
    """The point with the smallest sum of distances to all models, weighted by samples: RFA's smoothed Weiszfeld."""

    name: ClassVar[str] = "geometric_median"
    citation: ClassVar[str] = "Pillutla et al., Robust Aggregation for Federated Learning, IEEE TSP 2022"
    steps: int = option(3, "Most steps of the Weiszfeld algorithm, from the weighted mean.", symbol="R", at_least=1)
    smoothing: float = option(1e-6, "Distances below this count as this.", symbol="ν", above=0)
    tolerance: float = option(
        1e-6, "It has converged when the point moves by less, relative to its length.", at_least=0
    )

    def combine(self, models: Sequence[Tensor], weights: Sequence[float], before: Tensor, trainable: int) -> Tensor:
        point = weighted_mean(models, weights)
        for _ in range(self.steps):
            distances = [max(length((model - point)[:trainable]), self.smoothing) for model in models]
            pull = [weight / distance for weight, distance in zip(weights, distances, strict=True)]
            last, point = point, weighted_mean(models, pull)
            if length((point - last)[:trainable]) <= self.tolerance * length(last[:trainable]):
                break
        return point


@dataclass(frozen=True)
class NormClipping(Aggregator):
    """The weighted mean of the updates, each shortened to a limit."""

    name: ClassVar[str] = "norm_clipping"
    citation: ClassVar[str] = "Sun et al., Can You Really Backdoor Federated Learning?, 2019"
    limit: float | None = option(
        None, "The longest update; none: the median length of the round's updates.", symbol="M", above=0
    )

    def combine(self, models: Sequence[Tensor], weights: Sequence[float], before: Tensor, trainable: int) -> Tensor:
        lengths = [length((model - before)[:trainable]) for model in models]
        limit = median(lengths) if self.limit is None else self.limit
        clipped = [
            model if long <= limit else before + (model - before) * (limit / long)
            for model, long in zip(models, lengths, strict=True)
        ]
        return weighted_mean(clipped, weights)


def rounded_down(share: float, count: int) -> int:
    """A share of a count; the small addition makes 0.2 of 5 exactly 1 in spite of rounding."""
    return int(share * count + 1e-9)
