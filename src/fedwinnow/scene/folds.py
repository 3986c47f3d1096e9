"""Folds inside each site: which samples are held out together, with whole groups (patients) kept in one fold."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwinnow.data.groups import group_numbers
from fedwinnow.errors import UsageError
from fedwinnow.randomness import Integers, permutation
from fedwinnow.scene.holdings import Holdings, at_several_clients

PURPOSE = "folds"


def folds(holdings: Holdings, groups: NDArray[Any] | None, count: int, seed: int) -> Integers:
    """The fold (0 to count - 1) of every holding, aligned with `holdings.rows`.

    `groups` has one value per training row of the data set; None: every sample is its own group. Inside each site
    whole groups go into folds of sizes as equal as groups allow; the lots depend only on the seed and the number
    of the site. A group (or a sample) at several sites is in the same fold at all of them: otherwise the models that
    judge it at one site would have learnt it at another.
    """
    if count < 2:
        raise UsageError(f"{count} folds were asked for; allowed: 2 or more.")
    group = holdings.rows if groups is None else group_numbers(groups[holdings.rows])
    client = holdings.client
    found = np.full(len(group), -1, np.int64)
    shared = at_several_clients(group, client)
    if shared.any():
        found[shared] = whole_groups(group[shared], count, np.zeros(count, np.int64), seed, -1)
    for site in range(holdings.clients):
        mine = holdings.of(site)
        own = np.flatnonzero(~shared[mine])
        taken = np.bincount(found[mine][shared[mine]], minlength=count)
        found[mine.start + own] = whole_groups(group[mine][own], count, taken, seed, site)
    return found


def site_folds(groups: NDArray[Any], count: int, seed: int, site: int) -> Integers:
    """The folds of one site that knows only its own samples: what `folds` gives it if it shares no group."""
    if count < 2:
        raise UsageError(f"{count} folds were asked for; allowed: 2 or more.")
    return whole_groups(group_numbers(groups), count, np.zeros(count, np.int64), seed, site)


def whole_groups(group: Integers, count: int, taken: Integers, seed: int, site: int) -> Integers:
    """The fold of each sample: the largest groups first, each into the fold that is emptiest so far.

    `taken` is how many samples each fold of this site has already. Groups of one size come in random order, and which
    fold is filled first is drawn too, so that the folds of many small sites add up to equal sizes.
    """
    if not len(group):
        return np.zeros(0, np.int64)
    _, number, sizes = np.unique(group, return_inverse=True, return_counts=True)
    lots = permutation(seed, f"{PURPOSE} groups", len(sizes), site + 1)
    order = lots[np.argsort(-sizes[lots], kind="stable")]
    first = permutation(seed, f"{PURPOSE} order", count, site + 1)
    loads = taken[first].astype(np.int64)
    single = int((sizes > 1).sum())  # from here on groups have one sample
    place = np.empty(len(sizes), np.int64)
    for which in order[:single].tolist():
        emptiest = int(np.argmin(loads))
        place[which] = emptiest
        loads[emptiest] += sizes[which]
    place[order[single:]] = fill_up(loads, len(sizes) - single)
    return first[place[number.reshape(-1)]]


def fill_up(loads: Integers, count: int) -> Integers:
    """Where so many single samples go, each to the emptiest fold; without a loop, because there may be many."""
    heights = loads[None, :] + np.arange(count)[:, None]
    places = np.broadcast_to(np.arange(len(loads)), heights.shape)
    return places.ravel()[np.argsort(heights.ravel(), kind="stable")[:count]]
