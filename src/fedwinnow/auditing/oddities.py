"""Samples of a site that are odd apart from their labels: near-duplicates of another sample, and outliers.

Both come from the nearest samples of the same site and are written into its folder; nothing of it leaves the site.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedwinnow.auditing.encoder_choice import without_encoder
from fedwinnow.data.dataset import Dataset, Features
from fedwinnow.encoders.encoder import Matrix
from fedwinnow.randomness import Integers

MOST = 20000  # samples of a site up to which all pairs are compared
# Where half of the samples look like another one, they have too few columns to be told apart, and it means nothing.
COMMON = 0.5


@dataclass(frozen=True, eq=False)
class Oddities:
    """Per sample of a site, in its order."""

    duplicate: Integers  # the place of the sample that is almost the same; -1: there is none
    outlier: NDArray[np.bool_]
    known: bool = True  # False: too many samples to compare, or too few columns to tell them apart

    @classmethod
    def unknown(cls, count: int) -> Oddities:
        """Nothing is known about these samples."""
        return cls(np.full(count, -1, np.int64), np.zeros(count, bool), known=False)

    def ordered(self, order: Integers) -> Oddities:
        """The same for the samples in another order."""
        place_of = np.empty(len(order), np.int64)
        place_of[order] = np.arange(len(order))
        duplicate = self.duplicate[order]
        return Oddities(np.where(duplicate < 0, -1, place_of[duplicate]), self.outlier[order], self.known)


def oddities_in(rows: Matrix) -> Oddities:
    """Near-duplicates and outliers among the samples of one site, given as rows of numbers."""
    import torch

    from fedwinnow.mathematics.neighbours import near_duplicates, nearest, outliers

    if not 1 < len(rows) <= MOST:
        return Oddities.unknown(len(rows))
    near = nearest(torch.from_numpy(np.ascontiguousarray(rows, np.float32)))
    duplicate = near_duplicates(near).numpy()
    if (duplicate >= 0).mean() > COMMON:
        return Oddities.unknown(len(rows))
    return Oddities(duplicate, outliers(near).numpy())


def oddities_of(dataset: Dataset, rows: Integers, encoded: Features | None) -> Oddities:
    """Those of the samples of one site, from the features that the models see: `encoded`, where there is an encoder."""
    if len(rows) > MOST:
        return Oddities.unknown(len(rows))
    if encoded is None:
        return oddities_in(without_encoder(dataset, rows))
    return oddities_in(np.asarray(encoded.take(rows), np.float32).reshape(len(rows), -1))
