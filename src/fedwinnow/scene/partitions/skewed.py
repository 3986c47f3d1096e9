"""Partitions in which classes or sizes are spread unevenly, as Dirichlet draws."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedwinnow.errors import DataError
from fedwinnow.options import option
from fedwinnow.randomness import Floats, Integers, frozen_generator, permutation, uniforms
from fedwinnow.scene.holdings import Holdings
from fedwinnow.scene.partition import Partition, Population, UnevenPartition, shuffled_classes
from fedwinnow.scene.partitions.even import share_classes

EVEN = 1e100  # a larger alpha gives the same digits as infinity, and its gamma draws would overflow


def dirichlet(generator: np.random.RandomState, alpha: float, size: int) -> Floats:
    """One Dirichlet draw; it also works for a tiny alpha, where every gamma draw may underflow to 0."""
    if alpha > EVEN:
        return np.full(size, 1.0 / size)
    draws = generator.standard_gamma(alpha, size)
    if draws.sum() == 0:
        draws[generator.randint(size)] = 1.0
    return np.asarray(draws / draws.sum())


def cut(count: int, shares: Floats) -> Integers:
    """How many of `count` samples each client gets by these shares; the sum is exact."""
    ends = np.floor(np.cumsum(shares) * count + 1e-9).astype(np.int64)
    # Rounding may leave the last samples over: they go to the last client that has a share.
    ends[np.flatnonzero(shares > 0)[-1] :] = count
    return np.diff(ends, prepend=0)


@dataclass(frozen=True)
class Dirichlet(UnevenPartition):
    """Each class is cut among the clients by a Dirichlet draw: small alpha, few classes per client.

    With alpha=0 every client holds one class (several if there are fewer clients than classes), with no cap. With
    alpha=inf every class is cut into equal parts.
    """

    name: ClassVar[str] = "dirichlet"
    source: ClassVar[str] = "FedGR with 0.3 and the cap (as FedLab does it), FedES with 0.5 and no cap"
    alpha: float = option(0.3, "Concentration: smaller is more skewed.", symbol="α", source="FedGR", at_least=0)
    cap: bool = option(True, "A client that already has its equal share of samples gets no more.", source="FedLab")

    def draw(self, population: Population, attempt: int) -> Holdings:
        if self.alpha == 0:
            return one_class_each(population)
        count, clients = len(population), population.clients
        client = np.empty(count, np.int64)
        sizes = np.zeros(clients, np.int64)
        for label, rows in enumerate(shuffled_classes(population, f"partition order {attempt}")):
            shares = dirichlet(frozen_generator(population.seed, "partition", attempt, label), self.alpha, clients)
            if self.cap and not math.isinf(self.alpha):
                open_shares = np.where(sizes < count / clients, shares, 0.0)
                shares = open_shares / open_shares.sum() if open_shares.sum() > 0 else shares
            taken = cut(len(rows), shares)
            client[rows] = np.repeat(np.arange(clients), taken)
            sizes += taken
        return Holdings.from_clients(client, clients)

    def describe(self) -> str:
        if self.alpha == 0:
            return "one class for every client"
        capped = ", no client above its equal share when a class is dealt" if self.cap else ""
        return f"each class cut among the clients by Dirichlet({self.alpha:g}){capped}"


def one_class_each(population: Population) -> Holdings:
    """The limit of a Dirichlet draw at 0: classes and clients are matched one to one, the shorter list repeated."""
    classes, clients = population.classes, population.clients
    order = permutation(population.seed, "partition classes", max(classes, clients))
    holds = np.zeros((clients, classes), bool)
    holds[order % clients, np.arange(len(order)) % classes] = True
    return share_classes(population, holds, "partition samples")


@dataclass(frozen=True)
class BernoulliDirichlet(UnevenPartition):
    """Each client holds each class with probability p; a class is then shared by a Dirichlet draw over its holders."""

    name: ClassVar[str] = "bernoulli_dirichlet"
    source: ClassVar[str] = "FedCorr, FedDiv: (0.7, 10), (0.7, 1), (0.3, 10); FedNoRo: ICH (0.9, 2), ISIC (0.99, 1.5)"
    p: float = option(0.7, "Probability that a client holds a class.", symbol="p", source="FedDiv", above=0, at_most=1)
    alpha: float = option(10.0, "Concentration of the shares.", symbol="α", source="FedDiv", above=0)
    exact: bool = option(
        True, "Cut each class by the shares (papers) instead of drawing the client of each sample (released codes)."
    )

    def draw(self, population: Population, attempt: int) -> Holdings:
        holds = self.draw_classes(population, attempt)
        client = np.empty(len(population), np.int64)
        for label, rows in enumerate(shuffled_classes(population, f"partition order {attempt}")):
            holders = np.flatnonzero(holds[:, label])
            generator = frozen_generator(population.seed, "partition", attempt, label)
            shares = dirichlet(generator, self.alpha, len(holders))
            taken = cut(len(rows), shares) if self.exact else generator.multinomial(len(rows), shares)
            client[rows] = np.repeat(holders, taken)
        return Holdings.from_clients(client, population.clients)

    def draw_classes(self, population: Population, attempt: int) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        """Which client holds which class; each client has a class, and each class a client."""
        clients, classes = np.arange(population.clients)[:, None], np.arange(population.classes)[None, :]
        holds = np.zeros((population.clients, population.classes), bool)
        for again in range(1000):
            without_class = ~holds.any(axis=1)
            if not without_class.any():
                break
            purpose = f"partition classes {attempt}/{again}"
            holds[without_class] = uniforms(population.seed, purpose, clients[without_class], classes) < self.p
        else:
            raise DataError(f"{self}: some client holds no class in 1000 draws; allowed: a larger p.")
        without_client = np.flatnonzero(~holds.any(axis=0))
        # A class that no client drew would be lost, so one client takes it.
        luck = uniforms(population.seed, "partition orphans", clients, without_client[None, :])
        holds[np.argmin(luck, axis=0), without_client] = True
        return holds

    def describe(self) -> str:
        how = "cut" if self.exact else "drawn sample by sample"
        return f"each client holds each class with probability {self.p:g}; classes {how} by Dirichlet({self.alpha:g})"


@dataclass(frozen=True)
class Quantity(UnevenPartition):
    """Class mix as in the whole, but the sizes of the clients differ by a Dirichlet draw."""

    name: ClassVar[str] = "quantity"
    source: ClassVar[str] = "FedNoisy (quantity skew), with at least 10 samples"
    alpha: float = option(1.0, "Concentration: smaller is more uneven; inf is equal.", symbol="α", above=0)

    def draw(self, population: Population, attempt: int) -> Holdings:
        count = len(population)
        shares = dirichlet(frozen_generator(population.seed, "partition", attempt), self.alpha, population.clients)
        client = np.empty(count, np.int64)
        order = permutation(population.seed, f"partition order {attempt}", count)
        client[order] = np.repeat(np.arange(population.clients), cut(count, shares))
        return Holdings.from_clients(client, population.clients)

    def describe(self) -> str:
        return f"class mix as in the whole, sizes by Dirichlet({self.alpha:g})"


@dataclass(frozen=True)
class FedrnDirichletCompat(UnevenPartition):
    """FedRN's released Dirichlet split, which ignores the labels: the class mix is almost even, the sizes are not.

    The code cuts ten equal blocks of sample numbers instead of ten classes. Use it only to repeat its results.
    """

    name: ClassVar[str] = "fedrn_dirichlet_compat"
    source: ClassVar[str] = "FedRN's released code, not its paper"
    alpha: float = option(0.5, "Concentration.", symbol="β", source="FedRN", above=0)
    minimum: int = option(10, "Draw again until every client has so many samples.", source="FedRN", at_least=0)

    def draw(self, population: Population, attempt: int) -> Holdings:
        blocks = np.arange(len(population)) * 10 // len(population)
        pretended = dataclasses.replace(population, labels=blocks, classes=10)
        return Dirichlet(alpha=self.alpha, minimum=self.minimum).draw(pretended, attempt)

    def describe(self) -> str:
        return (
            f"ten equal blocks of sample numbers (not classes) cut by Dirichlet({self.alpha:g}), as FedRN's code does"
        )


@dataclass(frozen=True)
class ColumnPartition(Partition):
    """The data says who holds what: one client for each name in its site column."""

    name: ClassVar[str] = "column"
    by_data: ClassVar[bool] = True

    def split(self, population: Population) -> Holdings:
        if population.sites is None:
            raise DataError(
                "partition 'column' was asked for, but the data has no site column. "
                "Name it where the data is read, for example csv:path=...,label=...,site=hospital."
            )
        client = number_texts(population.sites)
        return Holdings.from_clients(client, int(client.max()) + 1)

    def describe(self) -> str:
        return "one client for each site that the data names"


def number_texts(texts: np.ndarray[tuple[int, ...], np.dtype[np.str_]]) -> Integers:
    """The place of each text among the different ones in alphabetical order.

    A dictionary is several times faster than np.unique, which sorts all texts.
    """
    every = texts.tolist()
    places = {text: place for place, text in enumerate(sorted(set(every)))}
    return np.array([places[text] for text in every], np.int64)
