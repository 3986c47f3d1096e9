"""Strata: labels of about the same rank, from a histogram of their scores, and how many of each a person looks at.

A score is a log-odds that the label is wrong. Strata are small at the top, where suspicious labels are, and grow with
depth. Sites send histograms; nothing here needs a single label.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedwinnow.randomness import Floats, Integers

LOWEST, HIGHEST, WIDTH = -16.0, 16.0, 0.25  # of scores; the outermost bins are open
BINS = round((HIGHEST - LOWEST) / WIDTH)
SMALLEST = 8  # labels in the first stratum, and the least that a further one has
GROWTH = 1.41  # the labels down to the end of a stratum, compared with the end of the one above
HARDLY = 0.0001  # the weight of a stratum about which there is no doubt


def bins_of(score: Floats) -> Integers:
    """The bin of each score; bin 0 has the highest scores."""
    place = np.floor((np.clip(score, LOWEST, HIGHEST) - LOWEST) / WIDTH).astype(np.int64)
    return BINS - 1 - np.clip(place, 0, BINS - 1)


def histogram(score: Floats) -> Integers:
    """How many labels are in each bin, the highest scores first."""
    return np.bincount(bins_of(score), minlength=BINS).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Strata:
    """The strata of a histogram, the most suspicious first."""

    last: Integers  # the last bin of each stratum
    sizes: Integers  # labels in each stratum

    @classmethod
    def of(cls, counts: Integers) -> Strata:
        """Bins are merged from the top; a stratum closes when the labels so far reach its target."""
        last, ends = [], [0]
        target, so_far = float(SMALLEST), 0
        for place, count in enumerate(counts.tolist()):
            so_far += count
            if so_far >= target:
                last.append(place)
                ends.append(so_far)
                target = max(GROWTH * so_far, so_far + SMALLEST)
        if so_far - ends[-1] >= SMALLEST or not last:
            last.append(len(counts) - 1)
            ends.append(so_far)
        last[-1], ends[-1] = len(counts) - 1, so_far  # a few labels that are left join the last stratum
        return cls(np.array(last, np.int64), np.diff(ends).astype(np.int64))

    def __len__(self) -> int:
        return len(self.sizes)

    def places(self, score: Floats) -> Integers:
        """The stratum of each score."""
        return np.searchsorted(self.last, bins_of(score)).astype(np.int64)

    def sizes_of(self, counts: Integers) -> Integers:
        """How many labels of another histogram, of one site for example, are in each stratum."""
        return np.diff(np.concatenate([[0], np.cumsum(counts)[self.last]])).astype(np.int64)

    @property
    def ends(self) -> Integers:
        """How many labels there are down to the end of each stratum."""
        return np.cumsum(self.sizes)

    @property
    def depth(self) -> Floats:
        """ln of the share of labels above the middle of each stratum."""
        return np.asarray(np.log((self.ends - self.sizes / 2) / self.sizes.sum()))


def first_of_all(counts: list[Integers], budget: int) -> list[int]:
    """How many labels of each site are among the first so many of all sites, from the histograms of the sites.

    Labels of one bin are equal: of the bin that is taken in part, sites take in proportion to what they have there.
    """
    below = np.sum(counts, axis=0).cumsum() < budget
    last = int(below.sum())
    above = [int(count[:last].sum()) for count in counts]
    if last >= len(below):
        return above
    within = np.array([count[last] for count in counts])
    shares = shared_out(within.astype(np.float64), within, budget - sum(above))
    return [many + part for many, part in zip(above, shares.tolist(), strict=True)]


def first_looks(sizes: Integers, looks: int) -> Integers:
    """How many labels of each stratum are looked at first: equally many, and what is left over goes to the top."""
    strata = len(sizes)
    if looks < strata:  # one look each in strata that lie evenly between top and bottom
        chosen = np.zeros(strata)
        chosen[((np.arange(looks) + 0.5) * strata / max(looks, 1)).astype(np.int64)] = 1
        return shared_out(chosen, sizes, looks)
    base = np.full(strata, looks // strata)
    base[: looks % strata] += 1
    return shared_out(base.astype(np.float64), sizes, looks)


def next_looks(sizes: Integers, taken: Integers, likely: Floats, looks: int) -> Integers:
    """How many further labels of each stratum are looked at: most where it is open whether half of them are wrong.

    `taken` are the labels looked at before, `likely` the chance that at least half of a stratum is wrong.
    """
    return shared_out(likely * (1 - likely) + HARDLY, sizes - taken, looks)


def shared_out(weights: Floats, limits: Integers, total: int) -> Integers:
    """A number in proportion to weights, in whole parts by the largest remainder; no part is above its limit."""
    parts = np.zeros(len(weights), np.int64)
    limits = np.maximum(limits, 0)
    total = min(total, int(limits.sum()))
    while (left := total - int(parts.sum())) > 0:
        room = limits - parts
        open_weights = np.where(room > 0, weights, 0.0)
        if open_weights.sum() <= 0:  # all that has a weight is full
            open_weights = (room > 0).astype(np.float64)
        share = left * open_weights / open_weights.sum()
        whole = np.floor(share + 1e-9).astype(np.int64)
        if (full := whole >= room).any() and (whole > room).any():
            parts[full] = limits[full]  # and the others share what is left once more
            continue
        parts += whole
        order = np.lexsort((np.arange(len(share)), whole - share))
        for place in [place for place in order.tolist() if room[place] > whole[place]][: total - int(parts.sum())]:
            parts[place] += 1
    return parts
