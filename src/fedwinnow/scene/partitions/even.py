"""Partitions in which every client gets the same number of samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedwinnow.errors import DataError, UsageError
from fedwinnow.options import option
from fedwinnow.randomness import permutation, uniforms
from fedwinnow.scene.holdings import Holdings
from fedwinnow.scene.partition import Partition, Population, deal_evenly, need_clients, shuffled_classes


@dataclass(frozen=True)
class Iid(Partition):
    """Every client gets a random share of the whole; sizes differ by at most one."""

    name: ClassVar[str] = "iid"
    source: ClassVar[str] = "FedCorr, FedDiv, FedRN (their codes drop the remainder; here it is dealt out)"

    def split(self, population: Population) -> Holdings:
        need_clients(self, population)
        client = np.empty(len(population), np.int64)
        order = permutation(population.seed, "partition", len(population))
        client[order] = deal_evenly(len(population), population.clients)
        return Holdings.from_clients(client, population.clients)

    def describe(self) -> str:
        return "samples dealt out at random, equally many to every client"


@dataclass(frozen=True)
class Shards(Partition):
    """Samples sorted by class and cut into shards; every client gets a few random shards, so few classes."""

    name: ClassVar[str] = "shards"
    source: ClassVar[str] = "FedRN: CIFAR-10 with 2 and 5, CIFAR-100 with 20, WebVision with 10"
    per_client: int = option(2, "Shards per client, so at most about so many classes.", symbol="S", at_least=1)

    def split(self, population: Population) -> Holdings:
        need_clients(self, population)
        shards = self.per_client * population.clients
        if shards > len(population):
            raise DataError(
                f"{self}: {population.clients} clients with {self.per_client} shards each need {shards} "
                f"{population.what}, but there are {len(population)}; allowed: per_client of at most "
                f"{len(population) // population.clients}."
            )
        # Random order within a class, so that a shard is a random part of it.
        order = np.concatenate(shuffled_classes(population, "partition order"))
        owner = permutation(population.seed, "partition", shards) % population.clients
        client = np.empty(len(population), np.int64)
        client[order] = owner[deal_evenly(len(population), shards)]
        return Holdings.from_clients(client, population.clients)

    def describe(self) -> str:
        return f"sorted by class, cut into shards, {self.per_client} random shards for every client"


@dataclass(frozen=True)
class Classes(Partition):
    """Every client holds a fixed number of classes; the samples of a class are shared equally by its holders."""

    name: ClassVar[str] = "classes"
    source: ClassVar[str] = "FedNoisy (#label), FNBench"
    per_client: int = option(2, "Classes per client.", symbol="m", at_least=1)

    def split(self, population: Population) -> Holdings:
        need_clients(self, population)
        classes, clients = population.classes, population.clients
        if self.per_client > classes:
            raise UsageError(f"{self}: there are only {classes} classes; allowed: per_client of at most {classes}.")
        if clients * self.per_client < classes:
            least = -(-classes // clients)
            raise UsageError(
                f"{self}: {clients} clients with {self.per_client} classes each leave some of the {classes} classes "
                f"without a holder; allowed: per_client of at least {least}, or more clients."
            )
        holds = self.draw_classes(population)
        return share_classes(population, holds, "partition samples")

    def draw_classes(self, population: Population) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        """Which client holds which class; the first classes come from a shuffled list, so that each has a holder."""
        classes, clients = population.classes, population.clients
        shuffled = permutation(population.seed, "partition classes", classes)
        wanted = np.arange(clients)[:, None]
        first = min(self.per_client, -(-classes // clients))
        scores = uniforms(population.seed, "partition", wanted, np.arange(classes)[None, :])
        for step in range(first):
            scores[np.arange(clients), shuffled[(np.arange(clients) * first + step) % classes]] = -1.0
        holds = np.zeros((clients, classes), bool)
        chosen = np.argsort(scores, axis=1, kind="stable")[:, : self.per_client]
        holds[wanted, chosen] = True
        return holds

    def describe(self) -> str:
        return f"every client holds {self.per_client} classes, the samples of a class shared equally by its holders"


def share_classes(
    population: Population, holds: np.ndarray[tuple[int, ...], np.dtype[np.bool_]], purpose: str
) -> Holdings:
    """Share the samples of each class equally among the clients that hold it, in random order."""
    client = np.empty(len(population), np.int64)
    for label, rows in enumerate(shuffled_classes(population, purpose)):
        holders = np.flatnonzero(holds[:, label])
        client[rows] = holders[deal_evenly(len(rows), len(holders))]
    return Holdings.from_clients(client, population.clients)
