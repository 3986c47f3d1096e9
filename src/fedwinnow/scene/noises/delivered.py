"""Noises that use the labels of the data and change none of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedwinnow.errors import DataError, unknown
from fedwinnow.options import option
from fedwinnow.randomness import Integers
from fedwinnow.scene.noise import Ground, Noise, NoisyLabels


def as_delivered(labels: Integers, ground: Ground, kind: str) -> NoisyLabels:
    """Labels that people gave; no rule made them wrong, so there is no nominal rate."""
    clients = ground.holdings.clients
    return NoisyLabels(
        given=labels[ground.holdings.rows].astype(np.int64),
        nominal=np.full(clients, np.nan),
        kinds=(kind,) * clients,
        truth_known=ground.samples.true is not None,
    )


@dataclass(frozen=True)
class Nothing(Noise):
    """No noise: the data's labels are taken to be true."""

    name: ClassVar[str] = "none"

    def apply(self, ground: Ground) -> NoisyLabels:
        clients = ground.holdings.clients
        return NoisyLabels(ground.true.copy(), np.zeros(clients), ("clean",) * clients)

    def describe(self) -> str:
        return "no label is wrong"


@dataclass(frozen=True)
class Given(Noise):
    """The data's own labels, right or wrong; the truth is unknown unless the data has a true column."""

    name: ClassVar[str] = "given"

    def apply(self, ground: Ground) -> NoisyLabels:
        return as_delivered(ground.samples.labels, ground, "given")

    def describe(self) -> str:
        return "the data's own labels, as they are"


@dataclass(frozen=True)
class Human(Noise):
    """Labels that people gave, where the data has several columns of them (CIFAR-10N, CIFAR-100N)."""

    name: ClassVar[str] = "human"
    source: ClassVar[str] = "CIFAR-10N: aggregate, random1, random2, random3, worse; CIFAR-100N: noisy"
    column: str = option(..., "Which column, for example worse.")

    def apply(self, ground: Ground) -> NoisyLabels:
        columns = ground.samples.human
        if not columns:
            raise DataError(f"{self}: {ground.data_name} has no labels by people; use --data cifar10n or cifar100n.")
        if self.column not in columns:
            raise unknown("column of human labels", self.column, columns)
        return as_delivered(columns[self.column], ground, "human")

    def describe(self) -> str:
        return f"labels that people gave, column {self.column}"
