"""Partitions in which each client draws from all samples, so that two clients may hold the same sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedwinnow.errors import DataError, UsageError
from fedwinnow.options import option
from fedwinnow.randomness import Integers, uniforms
from fedwinnow.scene.holdings import Holdings, narrow, rank_within
from fedwinnow.scene.partition import Partition, Population, need_clients


@dataclass(frozen=True)
class FedLsrPartition(Partition):
    """Every client draws from a few random classes with random proportions; clients may share samples."""

    name: ClassVar[str] = "fedlsr"
    source: ClassVar[str] = "FedLSR: 5 classes, proportions U(0, 1)"
    classes: int = option(5, "Random classes per client.", source="FedLSR", at_least=1)
    size: int | None = option(None, "Samples per client; none: an equal share of the data.", at_least=1)

    def split(self, population: Population) -> Holdings:
        need_clients(self, population)
        if self.classes > population.classes:
            raise UsageError(f"{self}: there are only {population.classes} classes; allowed: at most that many.")
        size = self.size or len(population) // population.clients
        if size > len(population):
            raise DataError(f"{self}: there are only {len(population)} samples; allowed: size of at most that.")
        counts = np.bincount(population.labels, minlength=population.classes)
        client, label = np.divmod(np.arange(population.clients * population.classes), population.classes)
        takes = np.minimum(self.wanted(population, size).ravel(), counts[label])
        pair, drawn = draw_without_repeat(population.seed, counts[label], takes)
        by_class = np.argsort(narrow(population.labels, population.classes), kind="stable")
        starts = np.concatenate([[0], np.cumsum(counts)])
        return Holdings.from_pairs(by_class[starts[label[pair]] + drawn], client[pair], population.clients)

    def wanted(self, population: Population, size: int) -> Integers:
        """How many samples of each class (column) each client (row) draws."""
        client, label = np.arange(population.clients)[:, None], np.arange(population.classes)[None, :]
        luck = uniforms(population.seed, "partition classes", client, label)
        chosen = luck <= np.sort(luck, axis=1)[:, self.classes - 1 : self.classes]
        shares = np.where(chosen, uniforms(population.seed, "partition shares", client, label) + 1e-9, 0.0)
        takes = np.round(size * shares / shares.sum(axis=1, keepdims=True))
        return np.asarray(np.maximum(takes, chosen), np.int64)

    def describe(self) -> str:
        return f"every client draws from {self.classes} random classes in random proportions; samples may be shared"


@dataclass(frozen=True)
class RhflPartition(Partition):
    """Every client draws its own random subset of the whole; clients may share samples."""

    name: ClassVar[str] = "rhfl"
    source: ClassVar[str] = "RHFL: 4 clients with 10,000 CIFAR-10 images each"
    size: int | None = option(None, "Samples per client; none: an equal share of the data.", at_least=1)

    def split(self, population: Population) -> Holdings:
        need_clients(self, population)
        size = self.size or len(population) // population.clients
        if size > len(population):
            raise DataError(f"{self}: there are only {len(population)} samples; allowed: size of at most that.")
        counts = np.full(population.clients, len(population))
        client, rows = draw_without_repeat(population.seed, counts, np.full(population.clients, size))
        return Holdings.from_pairs(rows, client, population.clients)

    def describe(self) -> str:
        return "every client draws a random subset of the whole; samples may be shared"


def draw_without_repeat(seed: int, counts: Integers, takes: Integers) -> tuple[Integers, Integers]:
    """For every lane i, `takes[i]` different numbers below `counts[i]`: the lane of each number, and the number.

    The cost grows with `takes`, not with `counts`, and a lane does not depend on the others.
    """
    lanes = np.arange(len(counts))
    few = takes * 4 < counts
    # A few more than needed, because some numbers will be drawn twice; a lane that runs short is drawn again below.
    tries = np.where(few & (takes > 0), takes + 2 * takes**2 // np.maximum(counts, 1) + 8, 0)
    lane, place = enumerate_lanes(lanes, tries)
    drawn = (uniforms(seed, "partition draw", lane, place) * counts[lane]).astype(np.int64)
    first = np.unique(lane * (int(counts.max()) + 1) + drawn, return_index=True)[1]  # a number drawn twice counts once
    first.sort()
    lane, drawn = lane[first], drawn[first]
    found = np.bincount(lane, minlength=len(counts))
    enough = few & (found >= takes)
    keep = enough[lane] & (enumerate_lanes(lanes, found)[1] < takes[lane])
    # The other lanes take a large part of their numbers: rank all of these.
    whole, number = enumerate_lanes(lanes[~enough], counts[~enough])
    taken = rank_within(whole, uniforms(seed, "partition draw", whole, number)) < takes[whole]
    return np.concatenate([lane[keep], whole[taken]]), np.concatenate([drawn[keep], number[taken]])


def enumerate_lanes(lanes: Integers, lengths: Integers) -> tuple[Integers, Integers]:
    """Lane i repeated `lengths[i]` times, and the place 0, 1, 2, ... within each lane."""
    place = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.repeat(lanes, lengths), place
