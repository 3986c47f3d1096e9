"""Flips that draw the wrong label at random."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from fedwinnow import catalogue
from fedwinnow.errors import DataError, UsageError
from fedwinnow.options import option
from fedwinnow.randomness import Floats, Integers, uniforms
from fedwinnow.scene.noise import Flags, Flip, Ground, Wrong


@dataclass(frozen=True)
class Symmetric(Flip):
    """Any of the other classes, all equally likely."""

    name: ClassVar[str] = "symmetric"
    source: ClassVar[str] = "FedRN's, FedGR's and FedNoisy's codes"

    def flip(self, ground: Ground, wrong: Wrong) -> Integers:
        if wrong.local:
            return local_others(ground.present(), wrong)
        steps = 1 + (wrong.luck * (ground.classes - 1)).astype(np.int64)
        return (wrong.true + steps) % ground.classes

    def describe(self) -> str:
        return "a wrong label is any other class, all equally likely"


def local_others(present: Flags, wrong: Wrong) -> Integers:
    """Another class that the client holds, all equally likely; a client with one class keeps its label."""
    counts = present.sum(axis=1)
    # Each row of `order` begins with the classes that the client holds, in ascending order.
    order = np.argsort(~present, axis=1, kind="stable")
    place = np.cumsum(present, axis=1) - 1
    others = np.maximum(counts[wrong.client] - 1, 0)
    drawn = (wrong.luck * others).astype(np.int64)
    drawn += drawn >= place[wrong.client, wrong.true]
    return np.where(others > 0, order[wrong.client, np.minimum(drawn, present.shape[1] - 1)], wrong.true)


@dataclass(frozen=True)
class SymmetricAll(Flip):
    """Any class, all equally likely, the true one too: the realised rate is (1 - 1/C) times the nominal one."""

    name: ClassVar[str] = "symmetric_all"
    source: ClassVar[str] = "FedCorr and FedDiv: replaced by all possible class labels"

    def flip(self, ground: Ground, wrong: Wrong) -> Integers:
        if not wrong.local:
            return (wrong.luck * ground.classes).astype(np.int64)
        present = ground.present()
        order = np.argsort(~present, axis=1, kind="stable")
        drawn = (wrong.luck * present.sum(axis=1)[wrong.client]).astype(np.int64)
        return np.asarray(order[wrong.client, drawn])

    def describe(self) -> str:
        return "a noisy label is any class, all equally likely, so it may be right by chance"


@dataclass(frozen=True)
class FedcorrCompat(Flip):
    """FedCorr's and FedDiv's released code: one of the first ten classes, for any data set.

    With ten classes it is the same as symmetric_all. With CIFAR-100 every wrong label is one of the classes 0 to 9.
    """

    name: ClassVar[str] = "fedcorr_compat"
    source: ClassVar[str] = "FedCorr's and FedDiv's released code, not their papers"

    def flip(self, ground: Ground, wrong: Wrong) -> Integers:
        if wrong.local:
            raise UsageError("flip 'fedcorr_compat' repeats a released code that has no local=true; leave it out.")
        return (wrong.luck * min(ground.classes, 10)).astype(np.int64)

    def describe(self) -> str:
        return "a noisy label is one of the first ten classes, the true one too, as in FedCorr's code"


@dataclass(frozen=True)
class Matrix(Flip):
    """A transition matrix from a file: row = true class, column = probability of each given class.

    It is applied to the samples that the rate rule chooses; with constant:rate=1 it is the whole noise.
    """

    name: ClassVar[str] = "matrix"
    file: Path = option(..., "A CSV file without header, or a .npy file, with C rows and C columns; rows sum to 1.")

    def flip(self, ground: Ground, wrong: Wrong) -> Integers:
        cumulative = np.cumsum(self.read(ground.classes), axis=1)
        if wrong.local:
            raise UsageError("flip 'matrix' has its own probability for each class; leave local=true out.")
        # Row y of the matrix is shifted to y..y+1, so that one search finds row and column together.
        cumulative[:, -1] = 1.0
        flat = (cumulative + np.arange(ground.classes)[:, None]).ravel()
        found = np.searchsorted(flat, wrong.true + wrong.luck, side="right")
        return np.asarray(np.minimum(found - wrong.true * ground.classes, ground.classes - 1))

    def read(self, classes: int) -> Floats:
        """The matrix, checked."""
        try:
            if self.file.suffix == ".npy":
                matrix = np.load(self.file, allow_pickle=False).astype(np.float64)
            else:
                lines = filter(str.strip, self.file.read_text(encoding="utf-8-sig").splitlines())
                matrix = np.array([[float(cell) for cell in line.split(",")] for line in lines])
        except (OSError, ValueError, TypeError, EOFError, AttributeError, zipfile.BadZipFile) as problem:
            raise DataError(f"{self.file}: the transition matrix cannot be read: {problem}") from None
        if matrix.shape != (classes, classes):
            raise DataError(f"{self.file}: the shape is {matrix.shape}; allowed: {classes} rows and columns.")
        bad = np.flatnonzero((matrix < 0).any(axis=1) | ~(np.abs(matrix.sum(axis=1) - 1) < 1e-6))
        if len(bad):
            raise DataError(
                f"{self.file}, row {bad[0] + 1}: sums to {matrix[bad[0]].sum():g}; "
                f"allowed: probabilities from 0 to 1 that sum to 1."
            )
        return np.asarray(matrix)

    def describe(self) -> str:
        return f"labels drawn from the transition matrix {self.file.name}"


@dataclass(frozen=True)
class Mixed(Flip):
    """Some clients with symmetric noise, the others with asymmetric noise."""

    name: ClassVar[str] = "mixed"
    source: ClassVar[str] = "FedGR: each client at random; FedRN: the first half symmetric, the second asymmetric"
    reading: Literal["random", "halves"] = option("random", "Which clients are symmetric: drawn, or the first half.")
    asymmetric: str = option("asymmetric_cyclic", "The flip of the asymmetric clients, for example pair:step=-1.")

    def is_symmetric(self, clients: int, seed: int) -> Flags:
        """Which clients have symmetric noise."""
        who = np.arange(clients)
        return np.asarray(
            who < (clients + 1) // 2 if self.reading == "halves" else uniforms(seed, "noise kind", who) < 0.5
        )

    def other(self) -> Flip:
        """The flip of the asymmetric clients."""
        made = catalogue.make("flips", self.asymmetric)
        if not isinstance(made, Flip) or isinstance(made, Mixed) or made.weighs_samples:
            raise UsageError(f"asymmetric={self.asymmetric} was given; allowed: any flip but mixed and instance.")
        return made

    def flip(self, ground: Ground, wrong: Wrong) -> Integers:
        symmetric = self.is_symmetric(ground.holdings.clients, ground.seed)[wrong.client]
        return np.where(symmetric, Symmetric().flip(ground, wrong), self.other().flip(ground, wrong))

    def kinds(self, clients: int, seed: int) -> tuple[str, ...]:
        names = np.where(self.is_symmetric(clients, seed), Symmetric.name, self.other().name)
        return tuple(names.tolist())

    def describe(self) -> str:
        split = "each client at random" if self.reading == "random" else "the first half of the clients"
        return f"symmetric for {split}, for the others: {self.other().describe()}"
