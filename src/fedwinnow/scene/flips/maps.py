"""The fixed maps of asymmetric noise: each class is mistaken for one other class."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fedwinnow.errors import UsageError
from fedwinnow.options import option
from fedwinnow.randomness import Integers
from fedwinnow.scene.noise import Flip, Ground, Wrong

# The conventional pairs; classes that are not named keep their label.
MNIST = {2: 7, 3: 8, 5: 6, 6: 5, 7: 1}
CIFAR10 = {9: 1, 2: 0, 3: 5, 5: 3, 4: 7}

# The fine classes of each of CIFAR-100's twenty superclasses; a class becomes the next one of its row.
CIFAR100 = (
    (4, 30, 55, 72, 95),
    (1, 32, 67, 73, 91),
    (54, 62, 70, 82, 92),
    (9, 10, 16, 28, 61),
    (0, 51, 53, 57, 83),
    (22, 39, 40, 86, 87),
    (5, 20, 25, 84, 94),
    (6, 7, 14, 18, 24),
    (3, 42, 43, 88, 97),
    (12, 17, 37, 68, 76),
    (23, 33, 49, 60, 71),
    (15, 19, 21, 31, 38),
    (34, 63, 64, 66, 75),
    (26, 45, 77, 79, 99),
    (2, 11, 35, 46, 98),
    (27, 29, 44, 78, 93),
    (36, 50, 65, 74, 80),
    (47, 52, 56, 59, 96),
    (8, 13, 48, 58, 90),
    (41, 69, 81, 85, 89),
)

CONVENTIONAL = {
    "mnist": "mnist",
    "digits": "mnist",
    "cifar10": "cifar10",
    "cifar10n": "cifar10",
    "cifar100": "cifar100",
    "cifar100n": "cifar100",
}


def targets_of(name: str) -> Integers:
    """The class that each class becomes, for one of the conventional maps."""
    if name == "cifar100":
        targets = np.arange(100)
        for group in CIFAR100:
            targets[list(group)] = np.roll(group, -1)
        return targets
    targets = np.arange(10)
    for source, target in (MNIST if name == "mnist" else CIFAR10).items():
        targets[source] = target
    return targets


@dataclass(frozen=True)
class MapFlip(Flip):
    """Base of flips that turn every class into one other class."""

    @abstractmethod
    def targets(self, ground: Ground) -> Integers:
        """The class that each class becomes."""

    def flip(self, ground: Ground, wrong: Wrong) -> Integers:
        targets = self.targets(ground)
        if not wrong.local:
            return targets[wrong.true]
        return local_targets(targets, ground)[wrong.client, wrong.true]


def local_targets(targets: Integers, ground: Ground) -> Integers:
    """The map of each client (row), limited to the classes that it holds.

    An absent target is followed along the map (so within the same group) until a class is present. If the map leads
    back to the true class, the next present class in numeric order is taken. A client of one class keeps its label.
    """
    present = ground.present()
    clients, classes = present.shape
    own = np.arange(classes)
    local = np.broadcast_to(targets, present.shape).copy()
    rows = np.arange(clients)[:, None]
    moves = targets != own  # the other classes keep their label
    for _ in range(classes):
        absent = ~present[rows, local] & moves & (local != own)
        if not absent.any():
            break
        local = np.where(absent, targets[local], local)
    unsettled = (~present[rows, local] | (local == own)) & moves
    following = np.broadcast_to(own, present.shape).copy()
    for _ in range(classes):
        following = np.where(unsettled, (following + 1) % classes, local)
        unsettled = unsettled & ~present[rows, following] & (following != own)
        local = following
        if not unsettled.any():
            break
    return local


@dataclass(frozen=True)
class Pair(MapFlip):
    """Every class becomes its neighbour by number."""

    name: ClassVar[str] = "pair"
    source: ClassVar[str] = "co-teaching and RHFL: +1; FedRN (asymmetric): -1"
    step: Literal[1, -1] = option(1, "The next class or the one before.")

    def targets(self, ground: Ground) -> Integers:
        return (np.arange(ground.classes) + self.step) % ground.classes

    def describe(self) -> str:
        return f"a wrong label is the class {'after' if self.step == 1 else 'before'} the true one"


@dataclass(frozen=True)
class Asymmetric(MapFlip):
    """Classes become one that looks like them: truck an automobile, bird an aeroplane, cat and dog each other."""

    name: ClassVar[str] = "asymmetric"
    source: ClassVar[str] = "the conventional maps of MNIST and CIFAR-10; CIFAR-100: next class of the true superclass"
    map: Literal["auto", "mnist", "cifar10", "cifar100"] = option("auto", "Which map; auto: the one of the data set.")

    def targets(self, ground: Ground) -> Integers:
        name = CONVENTIONAL.get(ground.data_name) if self.map == "auto" else self.map
        if name is None:
            raise UsageError(
                f"flip 'asymmetric' has no conventional map for {ground.data_name}. Use flip=asymmetric_cyclic, "
                f"flip=pair, your own flip=matrix,file=..., or force one with map=mnist|cifar10|cifar100."
            )
        targets = targets_of(name)
        if len(targets) != ground.classes:
            raise UsageError(f"the map {name} is for {len(targets)} classes, but the data has {ground.classes}.")
        return targets

    def describe(self) -> str:
        which = "of the data set" if self.map == "auto" else f"of {self.map}"
        return f"a wrong label is the look-alike class of the conventional map {which}; classes outside it stay right"


@dataclass(frozen=True)
class AsymmetricCyclic(MapFlip):
    """Every class becomes the next; with 100 classes, the next within blocks of five consecutive numbers."""

    name: ClassVar[str] = "asymmetric_cyclic"
    source: ClassVar[str] = "FedGR's and FedNoisy's codes; the blocks of CIFAR-100 are not its superclasses"
    block: int | None = option(None, "Classes per block; none: 5 where there are 100 classes, else all.", at_least=2)

    def targets(self, ground: Ground) -> Integers:
        block = min(self.block or (5 if ground.classes == 100 else ground.classes), ground.classes)
        own = np.arange(ground.classes)
        start = own // block * block
        # The last block may be shorter than the others.
        length = np.minimum(block, ground.classes - start)
        return start + (own - start + 1) % length

    def describe(self) -> str:
        return "a wrong label is the next class" + (f" within blocks of {self.block}" if self.block else "")
