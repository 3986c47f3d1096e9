"""Data that tempt an audit to call right labels wrong: in each case they look like wrong ones in another way.

In most of them no label is wrong, so every call is a false one. Where labels are wrong (`permuted`), it is at the
second site only, and a call anywhere else is a false one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.battery_cases import SHARES, Luck, drawn, two_bells
from fedwinnow.data.arrays import from_arrays
from fedwinnow.data.dataset import Dataset

Ints = NDArray[np.int64]
Numbers = NDArray[Any]
OTHER_SITE = 1  # the site that differs from the others


@dataclass(frozen=True, eq=False)
class Sample:
    """What a case is made of: columns, given labels, true labels, and the site of each sample."""

    x: Numbers
    given: Ints
    site: Ints
    true: Ints | None = None  # None: the given ones


Make = Callable[[Luck, int], Sample]


@dataclass(frozen=True)
class Attack:
    """One case; everything in it follows from its name and a seed."""

    name: str
    kind: str  # what it tries
    make: Make

    def data(self, seed: int) -> Dataset:
        """The data, with the truth beside the labels."""
        found = self.make(Luck(seed + 500), seed)
        classes = np.unique(found.given)
        place = np.searchsorted(classes, found.given)
        true = place if found.true is None else np.searchsorted(classes, found.true)
        names = [f"class {one}" for one in classes.tolist()]
        sites = np.array([f"site-{number + 1}" for number in found.site.tolist()])
        dataset = from_arrays(
            found.x.astype(np.float32), place, true=true, sites=sites, class_names=names, name=self.name
        )
        return dataclasses.replace(dataset, agreed_classes=True)


def by_lot(count: int, luck: Luck) -> Ints:
    """Five sites of unequal size."""
    site = np.repeat(np.arange(len(SHARES)), np.round(np.array(SHARES) * count).astype(int))
    return np.asarray(luck.permutation(np.resize(site, count)), np.int64)


def real(data: str, seed: int) -> tuple[Numbers, Ints]:
    """The columns and true labels of a real set."""
    train = drawn(data, seed).train
    labels = train.labels if train.true is None else train.true
    return train.features.take(np.arange(len(train))).reshape(len(train), -1).astype(np.float64), labels


# --- nothing to learn ------------------------------------------------------------------------------------------------


def random_columns(count: int, columns: int, shares: tuple[float, ...]) -> Make:
    """Labels by lot that no column says anything about."""

    def make(luck: Luck, seed: int) -> Sample:
        return Sample(
            luck.normal(size=(count, columns)), luck.choice(len(shares), count, p=shares), by_lot(count, luck)
        )

    return make


def random_labels(data: str) -> Make:
    """Real columns, and labels by lot that are taken for right."""

    def make(luck: Luck, seed: int) -> Sample:
        x, labels = real(data, seed)
        return Sample(x, luck.permutation(labels), by_lot(len(x), luck))

    return make


def permuted(data: str) -> Make:
    """The labels of one site are exchanged among its samples: those that changed are wrong, all others right."""

    def make(luck: Luck, seed: int) -> Sample:
        x, labels = real(data, seed)
        site = by_lot(len(x), luck)
        mine, given = site == OTHER_SITE, labels.copy()
        given[mine] = luck.permutation(given[mine])
        return Sample(x, given, site, labels)

    return make


# --- copies ----------------------------------------------------------------------------------------------------------


def copied(make: Make, times: int, share: float = 1.0, *, new_label: bool = False, at_one_site: bool = True) -> Make:
    """A share of the samples several times, at one site or at any, with its label or with that of a random sample."""

    def again(luck: Luck, seed: int) -> Sample:
        one = make(luck, seed)
        chosen = np.flatnonzero(luck.rand(len(one.x)) < share)
        places = np.concatenate([np.arange(len(one.x)), *([chosen] * (times - 1))])
        given, site = one.given[places], one.site[places]
        extra = slice(len(one.x), len(places))
        if new_label:
            given[extra] = luck.permutation(given[extra])
        if not at_one_site:
            site[extra] = luck.permutation(site[extra])
        return Sample(one.x[places], given, site)

    return again


def rare_class_copied(luck: Luck, seed: int) -> Sample:
    """The rare class is given ten times as often by copying its samples, as people do before training."""
    one = random_columns(1000, 8, (0.95, 0.05))(luck, seed)
    places = np.concatenate([np.arange(1000), *([np.flatnonzero(one.given == 1)] * 9)])
    return Sample(one.x[places], one.given[places], one.site[places])


# --- a site with harder samples --------------------------------------------------------------------------------------


def harder(data: str, spoil: Callable[[Numbers, Luck], Numbers]) -> Make:
    """The samples of one site are spoiled; their labels are right."""

    def make(luck: Luck, seed: int) -> Sample:
        x, labels = real(data, seed)
        site = by_lot(len(x), luck)
        x[site == OTHER_SITE] = spoil(x[site == OTHER_SITE], luck)
        return Sample(x, labels, site)

    return make


def noisy(size: float) -> Callable[[Numbers, Luck], Numbers]:
    """Columns with so much noise on top."""
    return lambda x, luck: x + size * luck.normal(size=x.shape)


def blurred(size: float) -> Callable[[Numbers, Luck], Numbers]:
    """Square pictures, blurred."""

    def spoil(x: Numbers, luck: Luck) -> Numbers:
        from scipy.ndimage import gaussian_filter

        side = int(x.shape[1] ** 0.5)
        return gaussian_filter(x.reshape(-1, side, side), (0, size, size)).reshape(len(x), -1)

    return spoil


def turned(x: Numbers, luck: Luck) -> Numbers:
    """Square pictures, turned by a quarter."""
    side = int(x.shape[1] ** 0.5)
    return np.rot90(x.reshape(-1, side, side), axes=(1, 2)).reshape(len(x), -1)


def shifted(x: Numbers, luck: Luck) -> Numbers:
    """Another unit or another device: the same scale and offset on every sample of the site."""
    return x * np.exp(0.5 * luck.normal(size=x.shape[1])) + 0.7 * luck.normal(size=x.shape[1])


def shuffled(share: float) -> Callable[[Numbers, Luck], Numbers]:
    """A share of the cells are those of another sample of the site."""

    def spoil(x: Numbers, luck: Luck) -> Numbers:
        return np.where(luck.rand(*x.shape) < share, x[luck.permutation(len(x))], x)

    return spoil


def useless(x: Numbers, luck: Luck) -> Numbers:
    """The samples of the site are those of other people: no model can know their labels, which are right."""
    return x[luck.permutation(len(x))]


def closer_clouds(luck: Luck, seed: int) -> Sample:
    """Two normal clouds, which at one site overlap far more than at the others."""
    x, labels = two_bells(0.03)(luck)
    site = by_lot(len(x), luck)
    x[site == OTHER_SITE, 0] *= 0.35
    return Sample(x, labels, site)


# --- few samples -----------------------------------------------------------------------------------------------------


def rare_classes(luck: Luck, seed: int) -> Sample:
    """Digits, of which seven classes have six to twelve samples."""
    x, labels = real("digits", seed)
    keep = np.concatenate(
        [luck.permutation(np.flatnonzero(labels == one))[: 180 if one < 3 else 3 + one] for one in range(10)]
    )
    return Sample(x[keep], labels[keep], by_lot(len(keep), luck))


def rare_and_random(luck: Luck, seed: int) -> Sample:
    """A common class and six rare ones that no column shows."""
    shares = (0.88, *(0.02,) * 6)
    return random_columns(1200, 10, shares)(luck, seed)


def tiny_sites(make: Make, sites: int) -> Make:
    """So many sites with a few samples each."""

    def small(luck: Luck, seed: int) -> Sample:
        one = make(luck, seed)
        return dataclasses.replace(one, site=luck.randint(0, sites, len(one.x)))

    return small


def one_class_each(make: Make) -> Make:
    """Every site has one class only."""

    def apart(luck: Luck, seed: int) -> Sample:
        one = make(luck, seed)
        return dataclasses.replace(one, site=one.given)

    return apart


def one_class_here(make: Make) -> Make:
    """One site has one class only."""

    def apart(luck: Luck, seed: int) -> Sample:
        one = make(luck, seed)
        keep = (one.site != OTHER_SITE) | (one.given == 0)
        return Sample(one.x[keep], one.given[keep], one.site[keep])

    return apart


# --- a column that says the label ------------------------------------------------------------------------------------


def leaking(share: float, *, here_only: bool = False) -> Make:
    """One column is the label in this share of the samples, at all sites or at one; the others say nothing."""

    def make(luck: Luck, seed: int) -> Sample:
        one = random_columns(1200, 6, (0.4, 0.3, 0.3))(luck, seed)
        code = np.where(luck.rand(1200) < share, one.given, luck.randint(0, 3, 1200))
        columns = np.eye(3)[code]
        if here_only:
            columns[one.site != OTHER_SITE] = 0
        return Sample(np.column_stack([one.x, columns]), one.given, one.site)

    return make


COIN = random_columns(700, 5, (0.8, 0.2))
COIN50 = random_columns(700, 5, (0.5, 0.5))


def clouds(error: float) -> Make:
    """Two normal clouds that overlap so far."""

    def make(luck: Luck, seed: int) -> Sample:
        x, labels = two_bells(error)(luck)
        return Sample(x, labels, by_lot(len(x), luck))

    return make


def as_it_is(data: str) -> Make:
    """A real set with its right labels."""

    def make(luck: Luck, seed: int) -> Sample:
        x, labels = real(data, seed)
        return Sample(x, labels, by_lot(len(x), luck))

    return make


RANDOM, COPIES, HARDER, FEW, LEAK, PERMUTED, USELESS = (
    "nothing to learn",
    "copies",
    "a site with harder samples",
    "few samples",
    "a column that says the label",
    "labels of one site exchanged",
    "samples of one site exchanged",
)
# Right labels beside samples that were exchanged are the same data as right samples beside labels that were exchanged.
TOLD_APART_BY_NOBODY = (USELESS,)
ATTACKS = [
    Attack("random-80-20", RANDOM, random_columns(1000, 3, (0.8, 0.2))),
    Attack("random-wide", RANDOM, random_columns(600, 200, (0.7, 0.3))),
    Attack("random-5", RANDOM, random_columns(1200, 20, (0.4, 0.3, 0.15, 0.1, 0.05))),
    Attack("digits-random-labels", RANDOM, random_labels("digits")),
    Attack("fashion-random-labels", RANDOM, random_labels("fashion")),
    Attack("digits-permuted-here", PERMUTED, permuted("digits")),
    Attack("segment-permuted-here", PERMUTED, permuted("segment")),
    Attack("random-twice", COPIES, copied(COIN, 2)),
    Attack("random-five-times", COPIES, copied(COIN50, 5, 0.5)),
    Attack("random-half-ten-times", COPIES, copied(COIN50, 10, 0.2)),
    Attack("random-twice-anywhere", COPIES, copied(COIN50, 3, 0.5, at_one_site=False)),
    Attack("random-twice-other-label", COPIES, copied(COIN, 3, 0.5, new_label=True)),
    Attack("random-rare-class-ten-times", COPIES, rare_class_copied),
    Attack("clouds-copied", COPIES, copied(clouds(0.2), 3, 0.5)),
    Attack("digits-random-labels-copied", COPIES, copied(random_labels("digits"), 3, 0.5)),
    Attack("fashion-copied", COPIES, copied(as_it_is("fashion"), 3, 0.3)),
    Attack("fashion-blurred-here", HARDER, harder("fashion", blurred(1.2))),
    Attack("fashion-very-blurred-here", HARDER, harder("fashion", blurred(2.5))),
    Attack("fashion-noisy-here", HARDER, harder("fashion", noisy(1.0))),
    Attack("digits-blurred-here", HARDER, harder("digits", blurred(1.0))),
    Attack("digits-noisy-here", HARDER, harder("digits", noisy(1.0))),
    Attack("digits-turned-here", HARDER, harder("digits", turned)),
    Attack("segment-noisy-here", HARDER, harder("segment", noisy(0.6))),
    Attack("segment-other-units-here", HARDER, harder("segment", shifted)),
    Attack("segment-cells-mixed-here", HARDER, harder("segment", shuffled(0.3))),
    Attack("six-noisy-here", HARDER, harder("six", noisy(0.8))),
    Attack("clouds-closer-here", HARDER, closer_clouds),
    Attack("fashion-very-noisy-here", HARDER, harder("fashion", noisy(2.5))),
    Attack("digits-very-noisy-here", HARDER, harder("digits", noisy(2.5))),
    Attack("cancer-noisy-here", HARDER, harder("cancer", noisy(1.5))),
    Attack("segment-samples-exchanged-here", USELESS, harder("segment", useless)),
    Attack("digits-rare-classes", FEW, rare_classes),
    Attack("random-rare-classes", FEW, rare_and_random),
    Attack("clouds-60-tiny-sites", FEW, tiny_sites(clouds(0.1), 60)),
    Attack("random-60-tiny-sites", FEW, tiny_sites(COIN, 60)),
    Attack("segment-one-class-each", FEW, one_class_each(as_it_is("segment"))),
    Attack("random-one-class-each", FEW, one_class_each(random_columns(1000, 10, (0.3, 0.25, 0.2, 0.15, 0.1)))),
    Attack("random-one-class-here", FEW, one_class_here(random_columns(1200, 5, (0.5, 0.3, 0.2)))),
    Attack("leak", LEAK, leaking(1.0)),
    Attack("leak-95", LEAK, leaking(0.92)),
    Attack("leak-here", LEAK, leaking(1.0, here_only=True)),
]
