"""From an encoder's numbers to the input of a head, fitted from sums over sites: no sample is looked at by itself.

Measured on images, texts and tables, columns of mean 0 and deviation 1 and then rows of one length let one learning
rate serve them all: the step that is stable depends on the squared length of a row, which else grows with its width.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedwinnow.data.dataset import Rows
from fedwinnow.encoders.encoder import Matrix, Scale
from fedwinnow.errors import DataError
from fedwinnow.randomness import Floats

LENGTH = 8.0  # of a row after "l2"
FLAT = 1e-6  # a column whose deviation is smaller, compared with its largest value, is constant
CHUNK = 4096  # rows that are summed at once


@dataclass(frozen=True, eq=False)
class Sums:
    """What a site tells of its training samples: how many, and per column the sums that the scaling needs."""

    count: int
    first: Floats  # sums of the values; for idf: in how many samples the column is not zero
    second: Floats  # sums of the squares; for idf: nothing

    @classmethod
    def of(cls, rows: Iterable[Matrix], width: int, scale: Scale) -> Sums:
        """The sums of these rows, which come in pieces."""
        count, first, second = 0, np.zeros(width), np.zeros(width)
        for piece in rows:
            exact = piece.astype(np.float64)
            count += len(exact)
            if scale == "idf_l2":
                first += (exact != 0).sum(axis=0)
            else:
                first += exact.sum(axis=0)
                second += (exact * exact).sum(axis=0)
        return cls(count, first, second)

    def told(self, scale: Scale, least_count: int) -> Sums | None:
        """What leaves the site: nothing if it has too few samples; no count of fewer samples than the least count."""
        if self.count < max(1, least_count):
            return None
        if scale != "idf_l2":
            return self
        return Sums(self.count, np.where(self.first < least_count, 0.0, self.first), self.second)


@dataclass(frozen=True, eq=False)
class Scaling:
    """How rows of an encoder become the input of a head."""

    scale: Scale
    mean: NDArray[np.float32]  # per column, subtracted; zeros where nothing is
    factor: NDArray[np.float32]  # per column, multiplied

    @classmethod
    def plain(cls, width: int, scale: Scale = "none") -> Scaling:
        """A scaling that needs no sums."""
        return cls(scale, np.zeros(width, np.float32), np.ones(width, np.float32))

    @classmethod
    def fitted(cls, scale: Scale, sums: Iterable[Sums], width: int, rounding: float = 0.0) -> Scaling:
        """The scaling from the sums of the sites; a sum may be off by `rounding`."""
        if not needs_sums(scale):
            return cls.plain(width, scale)
        every = list(sums)
        count = sum(one.count for one in every)
        if not count:
            raise DataError("no site has enough training samples to standardise the features of the encoder.")
        first = np.sum([one.first for one in every], axis=0)
        if scale == "idf_l2":
            return cls(scale, np.zeros(width, np.float32), (np.log((1 + count) / (1 + first)) + 1).astype(np.float32))
        mean = first / count
        square = np.sum([one.second for one in every], axis=0) / count
        deviation = np.sqrt(np.maximum(square - mean * mean, 0.0))
        constant = deviation <= FLAT * np.sqrt(square)
        if rounding:  # a variance that is all rounding; the error of a mean counts twice in its square
            constant |= deviation**2 <= 2 * rounding / count * (1 + 2 * np.abs(mean))
        return cls(
            scale,
            mean.astype(np.float32),
            np.where(constant, 0.0, 1.0 / np.where(constant, 1.0, deviation)).astype(np.float32),
        )

    def applied(self, rows: Matrix, *, overwrite: bool = False) -> Matrix:
        """The rows as a head gets them; `overwrite` if nobody needs the given ones afterwards."""
        rows = np.array(rows, np.float32, order="C", copy=None if overwrite else True)
        if self.scale in ("std_l2", "std", "idf_l2"):
            rows -= self.mean
            rows *= self.factor
        if self.scale in ("std_l2", "l2", "idf_l2"):
            length = np.sqrt(np.einsum("ij,ij->i", rows, rows))
            factor = np.where(length > 0, LENGTH / np.where(length > 0, length, 1), 0).astype(np.float32)
            rows *= factor[:, None]
        return rows


def needs_sums(scale: Scale) -> bool:
    """Whether a scaling is fitted from sums of the sites."""
    return scale not in ("l2", "none")


def pieces_of(rows: Rows) -> Iterable[Rows]:
    """Rows in pieces, so that no large copy is made."""
    return (rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK))
