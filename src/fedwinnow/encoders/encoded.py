"""Encoded samples as features: half precision in mapped files, single precision and scaled when they are taken."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwinnow.data.dataset import Resident, Rows
from fedwinnow.encoders.encoder import Matrix
from fedwinnow.encoders.head_input import Scaling

Half = NDArray[np.float16]


@dataclass(frozen=True, eq=False)
class Encoded:
    """Rows of an encoder. A subset is cast and scaled once and stays in memory, as a client's visit needs it."""

    segments: tuple[Half, ...]  # arrays of the cache, mapped from files
    index: Rows  # per sample: its place in the segments, as if they were one array
    scaling: Scaling

    @property
    def shape(self) -> tuple[int, ...]:
        return self.segments[0].shape[1:]

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float32)

    def __len__(self) -> int:
        return len(self.index)

    @cached_property
    def starts(self) -> Rows:
        """Where each segment begins."""
        return np.cumsum([0, *(len(one) for one in self.segments[:-1])])

    def raw(self, rows: Rows) -> Matrix:
        """The numbers of the encoder itself."""
        return widened(self.half(rows))

    def half(self, rows: Rows) -> Half:
        """The numbers of the encoder itself, as they are kept."""
        places = self.index[rows]
        if len(self.segments) == 1:
            return np.asarray(self.segments[0][places])
        found = np.empty((len(places), *self.shape), np.float16)
        segment = np.searchsorted(self.starts, places, side="right") - 1
        for number in np.unique(segment).tolist():
            mine = segment == number
            found[mine] = self.segments[number][places[mine] - self.starts[number]]
        return found

    def take(self, rows: Rows) -> Matrix:
        return self.scaling.applied(self.raw(rows), overwrite=True)

    def stream(self, batches: Iterable[Rows]) -> Iterator[Matrix]:
        for rows in batches:
            yield self.take(rows)

    def subset(self, rows: Rows) -> Resident:
        return Resident(self.take(rows))

    def copied(self, rows: Rows) -> Encoded:
        """These rows in memory, still in half precision, without the others."""
        return Encoded((self.half(rows),), np.arange(len(rows)), self.scaling)

    def scaled(self, scaling: Scaling) -> Encoded:
        """The same rows with another scaling."""
        return replace(self, scaling=scaling)


def widened(rows: Half) -> Matrix:
    """The same numbers in single precision; torch casts several times faster than NumPy."""
    import torch

    found: Matrix = torch.from_numpy(rows).float().numpy()
    return found
