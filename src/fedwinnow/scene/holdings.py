"""Who holds what: the result of a partition, as two flat arrays instead of a list per client."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedwinnow.randomness import Floats, Integers, order_of


@dataclass(frozen=True, eq=False)
class Holdings:
    """Client k holds the samples `rows[offsets[k]:offsets[k + 1]]`, in ascending order.

    A sample may be held by several clients (the overlapping draws of two papers) or by nobody.
    """

    rows: Integers
    offsets: Integers

    @classmethod
    def from_clients(cls, client: Integers, clients: int) -> Holdings:
        """From one client number per sample; -1 means that nobody holds it."""
        return cls.from_pairs(np.arange(len(client)), client, clients)

    @classmethod
    def from_pairs(cls, rows: Integers, client: Integers, clients: int) -> Holdings:
        """From (row, client) pairs in any order; pairs with client -1 are left out."""
        held = client >= 0
        rows, client = rows[held], client[held]
        # One stable sort by client of rows that are already ascending orders both at once.
        ascending = np.argsort(rows, kind="stable") if (np.diff(rows) < 0).any() else np.arange(len(rows))
        order = ascending[np.argsort(narrow(client[ascending], clients), kind="stable")]
        offsets = np.concatenate([[0], np.cumsum(np.bincount(client, minlength=clients))])
        return cls(rows[order].astype(np.int64), offsets.astype(np.int64))

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
    """The same small whole numbers in two bytes where they fit: NumPy then sorts them in linear time."""
    return values.astype(np.int16) if limit <= np.iinfo(np.int16).max else values


def rank_within(groups: Integers, order_by: Floats) -> Integers:
    """The rank of each value among those of its group, 0 for the smallest."""
    order = order_of(order_by)
    count = int(groups.max()) + 1 if len(groups) else 0
    order = order[np.argsort(narrow(groups[order], count), kind="stable")]
    starts = np.concatenate([[0], np.cumsum(np.bincount(groups, minlength=count))])[:-1]
    ranks = np.empty(len(groups), np.int64)
    ranks[order] = np.arange(len(groups)) - starts[groups[order]]
    return ranks
