"""Folds inside each site: which samples are held out together; groups (patients) and copies are kept in one fold."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwinnow.data.groups import group_numbers
from fedwinnow.errors import UsageError
from fedwinnow.randomness import Integers, permutation
from fedwinnow.scene.holdings import Holdings, at_several_clients

PURPOSE = "folds"
# What more samples of a site share than this, as a share and as a number, is no copy of one sample: there are too few
# columns, such as a single yes or no.
COMMON_SHARE, COMMON = 0.2, 30
LARGEST_PART = 1 / 3  # of a site: groups that copies would join to more than this are not joined


def folds(
    holdings: Holdings, groups: NDArray[Any] | None, count: int, seed: int, content: Integers | None = None
) -> Integers:
    """The fold (0 to count - 1) of every holding, aligned with `holdings.rows`.

    `groups` has one value per training row of the data set; None: every sample is its own group. So has `content`, the
    same for copies; None: there are none. Inside each site whole groups go into folds of sizes as equal as groups
    allow; the lots depend only on the seed and the number of the site. A group (or a sample) at several sites is in
    the same fold at all of them: otherwise the models that judge it at one site would have learnt it at another.
    """
    if count < 2:
        raise UsageError(f"{count} folds were asked for; allowed: 2 or more.")
    client = holdings.client
    given = None if groups is None else group_numbers(groups[holdings.rows])
    group = held_together(holdings.rows if content is None else content[holdings.rows], given, client)
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


def site_folds(groups: NDArray[Any] | None, count: int, seed: int, site: int, content: Integers) -> Integers:
    """The folds of one site that knows only its own samples: what `folds` gives it if it shares no group or copy."""
    if count < 2:
        raise UsageError(f"{count} folds were asked for; allowed: 2 or more.")
    given = None if groups is None else group_numbers(groups)
    group = held_together(content, given, np.zeros(len(content), np.int64))
    return whole_groups(group, count, np.zeros(count, np.int64), seed, site)


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


def copies_here(content: Integers, site: Integers) -> Integers:
    """The same numbers, but of contents that are no copies of one sample every sample gets a number of its own.

    `content` and `site` have a value per holding. That depends on the site alone.
    """
    _, pair, times = np.unique(
        site * (int(content.max(initial=0)) + 1) + content, return_inverse=True, return_counts=True
    )
    often = times[pair.reshape(-1)]
    everywhere = often > np.maximum(COMMON, COMMON_SHARE * np.bincount(site)[site])
    found = content.copy()
    found[everywhere] = int(content.max(initial=0)) + 1 + np.flatnonzero(everywhere)
    return found


def copies_of(content: Integers, given: Integers) -> dict[str, int]:
    """How many samples of a site have copies there, in how many sets, and how many of these have two labels or more.

    `everywhere` are samples whose content so many have that it is no copy.
    """
    copies = copies_here(content, np.zeros(len(content), np.int64))
    _, place, times = np.unique(copies, return_inverse=True, return_counts=True)
    place = place.reshape(-1)
    pairs = np.unique(np.stack([place, given]), axis=1)[0]
    return {
        "samples": int(times[times > 1].sum()),
        "sets": int((times > 1).sum()),
        "two_labels": int((np.bincount(pairs, minlength=len(times)) > 1).sum()),
        "everywhere": int((copies != content).sum()),
    }


def held_together(content: Integers, groups: Integers | None, site: Integers) -> Integers:
    """A number per holding: what has the same one is judged by models that have seen none of it.

    These are copies, groups, and groups that copies join, such as two patients with one picture.
    """
    copies = copies_here(content, site)
    if groups is None:
        return copies
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    _, copy = np.unique(copies, return_inverse=True)
    _, group = np.unique(groups, return_inverse=True)
    copy, group = copy.reshape(-1), group.reshape(-1)
    many = int(group.max(initial=0)) + 1
    edges = coo_array((np.ones(len(copy), np.int8), (group, many + copy)), shape=(many + len(copy),) * 2)
    together = connected_components(edges, directed=False)[1][group].astype(np.int64)
    _, pair, times = np.unique(site * (many + len(copy)) + together, return_inverse=True, return_counts=True)
    large = times[pair.reshape(-1)] > LARGEST_PART * np.bincount(site)[site]
    return np.where(large, many + len(copy) + group, together)
