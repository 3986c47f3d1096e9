"""Groups of samples that belong together, such as the pictures of one patient: they stay on one side of every split."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwinnow.data.dataset import Dataset, Labels, Rows
from fedwinnow.errors import FedwinnowWarning
from fedwinnow.randomness import Floats, Integers, uniforms

Groups = NDArray[Any]  # texts or whole numbers, one per sample


def group_numbers(groups: Groups) -> Integers:
    """Groups as numbers 0, 1, 2, ..., in the order in which they first appear, so that names do not matter."""
    _, first, number = np.unique(groups, return_index=True, return_inverse=True)
    place = np.empty(len(first), np.int64)
    place[np.argsort(first)] = np.arange(len(first))
    return place[number.reshape(-1)]


def commonest_labels(group: Integers, labels: Labels, classes: int) -> Labels:
    """The commonest label of each group; of several that are equally common, the first class."""
    counts = np.bincount(group * classes + labels, minlength=(int(group.max()) + 1) * classes)
    return np.asarray(counts.reshape(-1, classes).argmax(1), np.int64)


def whole_groups_near(group: Integers, kind: Integers, wanted: Floats, luck: Floats) -> NDArray[np.bool_]:
    """Per sample: whether its group is drawn; of each kind about `wanted[kind]` samples, only in whole groups.

    `kind` and `luck` have one value per group. Groups come in the order of their luck, and one is taken while its
    middle is inside the wanted number, so that the sum is nearer to it than with one group more or fewer.
    """
    sizes = np.bincount(group, minlength=len(kind))
    order = np.lexsort((luck, kind))
    ends = np.cumsum(sizes[order])
    before = np.concatenate([[0], ends[:-1]])
    starts = np.searchsorted(kind[order], np.arange(len(wanted)))
    earlier = np.concatenate([[0], ends])[starts]  # samples of the kinds before
    middle = before + sizes[order] / 2 - earlier[kind[order]]
    taken = np.zeros(len(kind), np.bool_)
    taken[order] = middle < wanted[kind[order]]
    return np.asarray(taken[group])


def draw_groups(groups: Groups, labels: Labels, wanted: Integers, seed: int, purpose: str) -> Rows:
    """Rows of whole groups, about as many of each class as wanted; every class keeps a row that is not drawn."""
    group = group_numbers(groups)
    kind = commonest_labels(group, labels, len(wanted))
    luck = uniforms(seed, f"{purpose} groups", 0, np.arange(len(kind)))
    drawn = whole_groups_near(group, kind, wanted.astype(np.float64), luck)
    for label in range(len(wanted)):
        mine = labels == label
        if mine.any() and drawn[mine].all():
            back = group[np.flatnonzero(mine)[0]]
            drawn[group == back] = False
    return np.flatnonzero(drawn)


def warn_of_groups_in_both_parts(dataset: Dataset) -> None:
    """Warn of groups with samples in the training and in the test part, whose scores would be too good."""
    test = dataset.test
    if test is None or test.groups is None or dataset.train.groups is None:
        return
    both = np.intersect1d(dataset.train.groups.astype(np.str_), test.groups.astype(np.str_))
    if len(both):
        have = "group has" if len(both) == 1 else "groups have"
        warnings.warn(
            f"{dataset.name}: {len(both)} {have} samples in the training and in the test part, '{both[0]}' for "
            "example. The models know them, so scores on the test part are too good.",
            FedwinnowWarning,
            stacklevel=3,
        )
