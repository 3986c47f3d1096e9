"""Who holds which samples: the result of a partition, as two flat arrays instead of a list per client."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedwinnow.randomness import Floats, Integers, order_of


@dataclass(frozen=True, eq=False)
class Holdings:
    """Client k holds the samples `rows[offsets[k]:offsets[k + 1]]`, in ascending order.

    A sample may be held by several clients (as two papers draw them) or by none.
    """

    rows: Integers
    offsets: Integers

    @classmethod
    def from_clients(cls, client: Integers, clients: int) -> Holdings:
        """From one client number per sample; -1 means that no client holds it."""
        return cls.from_pairs(np.arange(len(client)), client, clients)

    @classmethod
    def from_pairs(cls, rows: Integers, client: Integers, clients: int) -> Holdings:
        """From (row, client) pairs in any order; pairs with client -1 are left out."""
        if (client < 0).any():
            held = client >= 0
            rows, client = rows[held], client[held]
        # Client and row are packed into one number: sorting numbers is much faster than sorting by two arrays.
        bits = int(rows.max(initial=0)).bit_length()
        both = np.sort((client.astype(np.int64) << bits) | rows)
        offsets = np.concatenate([[0], np.cumsum(np.bincount(client, minlength=clients))])
        return cls(both & ((1 << bits) - 1), offsets.astype(np.int64))

    @property
    def clients(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Integers:
        return np.diff(self.offsets)

    @property
    def client(self) -> Integers:
        """The client of each holding, aligned with `rows`."""
        return np.repeat(np.arange(self.clients), self.sizes)

    @property
    def position(self) -> Integers:
        """The place of each holding within its client, 0, 1, 2, ..."""
        return np.arange(len(self.rows)) - np.repeat(self.offsets[:-1], self.sizes)

    def of(self, client: int) -> slice:
        """Where the holdings of one client are."""
        return slice(int(self.offsets[client]), int(self.offsets[client + 1]))

    def overlap(self) -> bool:
        """Whether some sample is held more than once."""
        return len(self.rows) > 0 and int(np.bincount(self.rows).max()) > 1


def narrow(values: Integers, limit: int) -> np.ndarray[tuple[int, ...], np.dtype[np.integer]]:
    """The same whole numbers in two bytes if they fit, because NumPy sorts those in linear time."""
    return values.astype(np.int16) if limit <= np.iinfo(np.int16).max else values


def smallest_within(
    groups: Integers, luck: Floats, wanted: Integers
) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Whether each number of [0, 1) is among the `wanted[group]` smallest of its group."""
    sizes = np.bincount(groups, minlength=len(wanted))
    # Group and number are packed into one: the sorted values show the limit of each group.
    bits = 62 - len(wanted).bit_length()
    both = (groups << bits) | (luck * 2.0**bits).astype(np.int64)
    ordered = np.append(np.sort(both), np.iinfo(np.int64).max)
    ends = np.cumsum(sizes) - sizes + wanted
    limits = np.where(wanted < sizes, ordered[ends], np.arange(1, len(wanted) + 1) << bits)
    cut_inside = (wanted > 0) & (wanted < sizes)
    if (ordered[ends[cut_inside] - 1] == limits[cut_inside]).any():
        return rank_within(groups, luck) < wanted[groups]  # two numbers at a limit differ only in the bits cut off
    return np.asarray(both < limits[groups])


def rank_within(groups: Integers, order_by: Floats) -> Integers:
    """The rank of each value among those of its group, 0 for the smallest."""
    order = order_of(order_by)
    count = int(groups.max()) + 1 if len(groups) else 0
    order = order[np.argsort(narrow(groups[order], count), kind="stable")]
    starts = np.concatenate([[0], np.cumsum(np.bincount(groups, minlength=count))])[:-1]
    ranks = np.empty(len(groups), np.int64)
    ranks[order] = np.arange(len(groups)) - starts[groups[order]]
    return ranks


def at_several_clients(group: Integers, client: Integers) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Per holding: whether its group is at more than one client."""
    if not len(group):
        return np.zeros(0, np.bool_)
    lowest = np.full(int(group.max()) + 1, np.iinfo(np.int64).max)
    highest = np.full(len(lowest), -1)
    np.minimum.at(lowest, group, client)
    np.maximum.at(highest, group, client)
    return np.asarray((lowest < highest)[group])
