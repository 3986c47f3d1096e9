"""What may be said about means over seeds: spread, paired tests, correction for many comparisons, ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from fedwinnow.metrics.detection import shared_ranks
from fedwinnow.metrics.task import Figure
from fedwinnow.randomness import Floats

Test = Literal["t", "wilcoxon"]
TESTS = {"t": "paired t test", "wilcoxon": "Wilcoxon signed-rank test"}


def mean(values: Sequence[float]) -> Figure:
    """The mean; of nothing there is none."""
    return float(np.mean(values)) if len(values) else None


def sample_std(values: Sequence[float]) -> Figure:
    """The sample standard deviation (n - 1 below the line); one value has none."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def paired_p(first: Sequence[float], second: Sequence[float], test: Test) -> Figure:
    """Two-sided p value of a paired test; None for fewer than two pairs."""
    difference = np.asarray(first, np.float64) - np.asarray(second, np.float64)
    if len(difference) < 2:
        return None
    if not difference.any():
        return 1.0
    return p_of_t(difference) if test == "t" else p_of_wilcoxon(difference)


def p_of_t(difference: Floats) -> float:
    """Student's t test of the differences; where all are the same, chance cannot have made them."""
    from scipy import stats

    if np.std(difference, ddof=1) <= 1e-12 * abs(np.mean(difference)):
        return 0.0
    return float(stats.ttest_1samp(difference, 0.0).pvalue)


def p_of_wilcoxon(difference: Floats) -> float:
    """Wilcoxon's test by counting all signs; equal pairs are left out, equal sizes share their rank.

    SciPy's exact test takes equal sizes for different ones, and its count of all signs needs minutes for 20 pairs, so
    the count is made here. Beyond 20 pairs there are too many signs, and the normal approximation is good.
    """
    difference = difference[difference != 0]
    if len(difference) > 20:
        from scipy import stats

        return float(stats.wilcoxon(difference, correction=True, method="approx").pvalue)
    ranks = shared_ranks(np.abs(difference))
    sums = np.zeros(1)
    for rank in ranks:
        sums = np.concatenate([sums, sums + rank])
    far_from_half = np.abs(sums - ranks.sum() / 2)
    return float(np.mean(far_from_half >= abs(ranks[difference > 0].sum() - ranks.sum() / 2) - 1e-9))


def smallest_p(pairs: int, test: Test) -> float:
    """The smallest p value that so many pairs can give: with few, Wilcoxon's test can never be significant."""
    return 0.0 if test == "t" else min(1.0, 2.0 ** (1 - pairs))


def holm(p_values: Mapping[str, Figure]) -> dict[str, Figure]:
    """Holm's correction: the smallest p times the number of tests, the next times one less, never falling.

    What was not tested stays None and does not count.
    """
    tested = sorted((p, name) for name, p in p_values.items() if p is not None)
    corrected: dict[str, Figure] = dict.fromkeys(p_values)
    highest = 0.0
    for place, (p, name) in enumerate(tested):
        highest = max(highest, min(1.0, (len(tested) - place) * p))
        corrected[name] = highest
    return corrected


def average_ranks(blocks: Sequence[Mapping[str, float]], *, higher_is_better: bool) -> dict[str, float]:
    """The mean rank of every row over the blocks (1 is best); each block has all rows."""
    if not blocks:
        return {}
    names = list(blocks[0])
    sign = -1.0 if higher_is_better else 1.0
    ranks = np.array([shared_ranks([sign * block[name] for name in names]) for block in blocks])
    return dict(zip(names, ranks.mean(0).tolist(), strict=True))
