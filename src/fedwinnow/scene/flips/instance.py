"""Instance-dependent noise: a sample is mislabelled as a mediocre annotator would mislabel it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedwinnow.errors import UsageError
from fedwinnow.options import option
from fedwinnow.randomness import Floats, Integers, stream_key
from fedwinnow.scene.noise import Flip, Ground, Wrong


@dataclass(frozen=True, eq=False)
class Annotated(Ground):
    """The ground, with an annotator's class probabilities for every sample of the noisy clients."""

    opinion: Floats = dataclasses.field(default_factory=lambda: np.zeros((0, 0)))  # holdings x classes


@dataclass(frozen=True)
class Instance(Flip):
    """A small network per noisy client, trained on its true labels, picks the samples and their wrong labels.

    Samples are drawn without replacement, in proportion to the probability that the annotator gives to other classes;
    the wrong label is drawn in proportion to that probability. Where the annotator is sure of every sample, all are
    equally likely; where it gives no other class a probability, all other classes are equally likely.
    """

    name: ClassVar[str] = "instance"
    source: ClassVar[str] = "FedNoRo, algorithm 1 (H-IDN); its annotator and its length are not published"
    weighs_samples: ClassVar[bool] = True
    annotator: str | None = option(None, "The annotator's model; none: the one that a run takes for this data.")
    epochs: int = option(5, "Epochs of annotator training; with many it is sure of every sample.", at_least=0)
    lr: float = option(0.001, "Learning rate (Adam).", above=0, at_most=1)
    batch: int = option(32, "Batch size.", at_least=1)

    def prepare(self, ground: Ground, rates: Floats) -> Ground:
        from fedwinnow.scene.annotators import train_and_ask

        opinion = np.zeros((len(ground.true), ground.classes))
        for client in np.flatnonzero((rates > 0) & (ground.holdings.sizes > 0)):
            mine = ground.holdings.of(int(client))
            key = stream_key(ground.seed, "annotator", int(client))
            opinion[mine] = train_and_ask(
                ground, mine, key, model=self.annotator, epochs=self.epochs, lr=self.lr, batch=self.batch
            )
            if not np.isfinite(opinion[mine]).all():
                raise UsageError(
                    f"{self}: the annotator of client {client} did not learn: its probabilities are NaN or infinity. "
                    "Give a smaller lr, or check the data for huge values."
                )
        fields = {field.name: getattr(ground, field.name) for field in dataclasses.fields(Ground)}
        return Annotated(**fields, opinion=opinion)

    def keys(self, ground: Ground, luck: Floats) -> Floats:
        assert isinstance(ground, Annotated)
        doubt = 1.0 - ground.opinion[np.arange(len(luck)), ground.true]
        # The samples with the smallest -log(u) / weight are a weighted draw without replacement.
        return np.asarray(-np.log(np.maximum(luck, 2.0**-53)) / np.maximum(doubt, 1e-12))

    def flip(self, ground: Ground, wrong: Wrong) -> Integers:
        assert isinstance(ground, Annotated)
        weights = ground.opinion[wrong.holding]
        possible = np.ones_like(weights, bool)
        if wrong.local:
            possible = ground.present()[wrong.client]
        weights = np.where(possible, weights, 0.0)
        weights[np.arange(len(weights)), wrong.true] = 0.0
        without_weight = weights.sum(axis=1) <= 0
        weights[without_weight] = possible[without_weight]
        weights[np.arange(len(weights)), wrong.true] = 0.0
        total = weights.sum(axis=1, keepdims=True)
        ends = np.cumsum(weights, axis=1) / np.where(total > 0, total, 1.0)
        drawn = (ends <= wrong.luck[:, None]).sum(axis=1)
        # Rounding may move the draw past the last possible class.
        last = ground.classes - 1 - np.argmax(weights[:, ::-1] > 0, axis=1)
        return np.where(total[:, 0] > 0, np.minimum(drawn, last), wrong.true)

    def describe(self) -> str:
        return f"an annotator per noisy client ({self.epochs} epochs on its true labels) errs where it doubts"
