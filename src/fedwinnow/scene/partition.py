"""What a partition is: a rule that deals the training samples out to clients."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedwinnow.data.groups import commonest_labels, group_numbers
from fedwinnow.errors import DataError, FedwinnowWarning, UsageError
from fedwinnow.options import Part, option
from fedwinnow.randomness import Integers, permutation
from fedwinnow.scene.holdings import Holdings, at_several_clients, narrow

TRIES = 50


@dataclass(frozen=True, eq=False)
class Population:
    """What a partition may use: the labels it splits by, and the number of clients."""

    labels: Integers  # true labels where known, else the given ones
    classes: int
    clients: int
    seed: int
    sites: np.ndarray[tuple[int, ...], np.dtype[np.str_]] | None = None
    sizes: Integers | None = None  # where groups are dealt out instead of samples: how many samples each has

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def samples(self) -> int:
        """How many samples there are, in groups or not."""
        return len(self) if self.sizes is None else int(self.sizes.sum())

    @property
    def what(self) -> str:
        """What is dealt out, for a message."""
        return "samples" if self.sizes is None else "groups of samples"

    def samples_of(self, holdings: Holdings) -> Integers:
        """How many samples every client holds."""
        if self.sizes is None:
            return holdings.sizes
        counts = np.bincount(holdings.client, weights=self.sizes[holdings.rows], minlength=holdings.clients)
        return counts.astype(np.int64)


@dataclass(frozen=True)
class Partition(Part):
    """Base of every partition.

    Where the data has groups, the samples of a population are groups, each with its commonest label.
    """

    by_data: ClassVar[bool] = False  # True: the data says who holds what, so groups are not dealt out

    @abstractmethod
    def split(self, population: Population) -> Holdings:
        """Deal the samples out."""

    @abstractmethod
    def describe(self) -> str:
        """The rule in one sentence."""


@dataclass(frozen=True)
class UnevenPartition(Partition):
    """Base of Dirichlet partitions: their clients differ in size, so a client may be too small."""

    alpha: float = option(1.0, "Concentration: smaller is more uneven; inf is even.", symbol="α", above=0)
    minimum: int = option(1, "Draw again until every client has so many samples.", at_least=0)
    empty: Literal["error", "keep"] = option(
        "error", "What to do when no draw reaches the minimum: stop, or keep the last draw with its small clients."
    )

    @abstractmethod
    def draw(self, population: Population, attempt: int) -> Holdings:
        """The draw with this number."""

    def hint(self, population: Population) -> str:
        """For the error message: a value of alpha that reaches the minimum with this data, found by trying."""
        for alpha in (max(self.alpha, 0.05) * factor for factor in (2, 4, 8, 16, 64)):
            if replace(self, alpha=alpha).search(population, tries=5) is not None:
                return f"alpha={alpha:g} works with this data; fewer clients may too. "
        return "Use fewer clients or a smaller minimum. "

    def split(self, population: Population) -> Holdings:
        need_clients(self, population)
        return self.search(population) or self.give_up(population)

    def search(self, population: Population, tries: int = TRIES) -> Holdings | None:
        """The first draw in which every client is large enough."""
        if self.minimum * population.clients > population.samples:
            raise UsageError(
                f"{self}: {population.clients} clients with at least {self.minimum} samples each need "
                f"{self.minimum * population.clients} samples, but there are {population.samples}. "
                f"Allowed: minimum of at most {population.samples // population.clients}, or fewer clients."
            )
        for attempt in range(tries):
            holdings = self.draw(population, attempt)
            if int(population.samples_of(holdings).min()) >= self.minimum:
                return holdings
        return None

    def give_up(self, population: Population) -> Holdings:
        """No draw reached the minimum: return the last one with empty=keep, else raise an error with a hint."""
        last = self.draw(population, TRIES - 1)
        if self.empty == "keep":
            return last
        small = int((population.samples_of(last) < self.minimum).sum())
        raise DataError(
            f"{self}: in {TRIES} draws some client always had fewer than {self.minimum} of the {population.samples} "
            f"samples (in the last draw {small} of {population.clients}). {self.hint(population)}"
            f"Or set empty=keep to allow small clients."
        )


TOGETHER = "Groups are dealt out whole, each as one sample with its commonest label."


def deal(rule: Partition, population: Population, groups: NDArray[Any] | None) -> Holdings:
    """Who holds what; with groups the rule deals groups, each with its commonest label."""
    if groups is None or rule.by_data:
        return rule.split(population)
    group = group_numbers(groups)
    sizes = np.bincount(group)
    dealt = rule.split(
        replace(
            population, labels=commonest_labels(group, population.labels, population.classes), sites=None, sizes=sizes
        )
    )
    if dealt.overlap():
        raise UsageError(
            f"{rule} gives the same samples to several clients, but the data has groups, which stay at one client "
            "each; allowed: a partition without shared samples such as iid or dirichlet, or data without group=."
        )
    owner = np.full(len(sizes), -1)
    owner[dealt.rows] = dealt.client
    return Holdings.from_clients(owner[group], dealt.clients)


def warn_of_shared_groups(name: str, holdings: Holdings, groups: NDArray[Any], sites: Sequence[str]) -> None:
    """Warn of a group at two sites that the data itself names; they are left where they are."""
    mine = groups[holdings.rows]
    several = at_several_clients(group_numbers(mine), holdings.client)
    if not several.any():
        return
    first = mine[np.flatnonzero(several)[0]]
    where = [sites[number] for number in np.unique(holdings.client[mine == first])[:2].tolist()]
    count = len(np.unique(mine[several]))
    warnings.warn(
        f"{name}: {count} {'group has' if count == 1 else 'groups have'} samples at more than one site ('{first}' at "
        f"{where[0]} and {where[1]}), so a model of one site may know samples of another. If the same name means "
        "different patients, put the name of the site before it.",
        FedwinnowWarning,
        stacklevel=3,
    )


def need_clients(partition: Part, population: Population) -> None:
    """Refuse fewer than one client, and more clients than samples."""
    if population.clients < 1:
        raise UsageError(f"clients={population.clients} was given; allowed: 1 or more.")
    if population.clients > len(population):
        raise DataError(
            f"{partition}: {population.clients} clients but only {len(population)} training {population.what}; "
            f"allowed: at most {len(population)} clients."
        )


def shuffled_classes(population: Population, purpose: str) -> list[Integers]:
    """The rows of each class, in random order."""
    labels = population.labels
    order = permutation(population.seed, purpose, len(labels))
    order = order[np.argsort(narrow(labels, population.classes)[order], kind="stable")]
    return np.split(order, np.cumsum(np.bincount(labels, minlength=population.classes))[:-1])


def deal_evenly(count: int, parts: int) -> Integers:
    """The part of each of `count` ordered items, cut into parts whose sizes differ by at most one."""
    return (np.arange(count) * parts) // max(count, 1)
