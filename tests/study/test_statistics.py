"""Spread, paired tests, Holm and ranks against numbers worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedwinnow.study.statistics import average_ranks, holm, mean, paired_p, sample_std, smallest_p


def test_mean_and_sample_deviation():
    assert mean([1, 2, 6]) == 3
    assert sample_std([1, 2, 6]) == pytest.approx(math.sqrt((4 + 1 + 9) / 2))
    assert mean([]) is None
    assert sample_std([1]) is None


def test_paired_t_by_hand():
    # Differences 1, 2, 3: mean 2, deviation 1, t = 2 * sqrt(3); with two degrees of freedom
    # P(|T| > t) = 1 - t / sqrt(2 + t^2) = 1 - sqrt(12 / 14).
    assert paired_p([2, 4, 6], [1, 2, 3], "t") == pytest.approx(1 - math.sqrt(12 / 14))


def test_wilcoxon_by_hand():
    # All four differences are positive: of the 16 ways to give signs, this one and its mirror are as extreme.
    assert paired_p([2, 4, 6, 8], [1, 2, 3, 4], "wilcoxon") == 2 / 16
    # Differences 3, -1, 2: ranks 3, 1, 2, positive sum 5 of 6. As extreme: sums 0, 1, 5 and 6, so 4 of the 8 signs.
    assert paired_p([3, 0, 2], [0, 1, 0], "wilcoxon") == 4 / 8
    # One pair is equal and does not count; the others have equal sizes and share rank 1.5.
    assert paired_p([1, 1, 5], [0, 0, 5], "wilcoxon") == 2 / 4


def test_wilcoxon_counts_signs_with_equal_sizes():
    # SciPy's exact test takes all sizes for different and gives 0.296875 here; its slow count of all signs agrees.
    differences = np.array([4.0, -3.0, 3.0, -1.0, 1.0, 2.0, 0.0, 2.0])
    counted = stats.wilcoxon(differences[differences != 0], method=stats.PermutationMethod(n_resamples=np.inf)).pvalue
    assert paired_p(differences, np.zeros(8), "wilcoxon") == counted
    assert paired_p([1.0] * 20, [0.0] * 20, "wilcoxon") == 2**-19  # 20 pairs are still counted


def test_what_cannot_be_tested():
    assert paired_p([1], [2], "t") is None
    assert paired_p([1, 2], [1, 2], "t") == 1.0
    assert paired_p([1, 2], [1, 2], "wilcoxon") == 1.0
    assert paired_p([1, 2, 3], [0, 1, 2], "t") == 0.0  # always exactly one better


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=3, max_size=30))
def test_against_scipy(pairs):
    first, second = [list(map(float, side)) for side in zip(*pairs, strict=True)]
    differences = [a - b for a, b in zip(first, second, strict=True)]
    if len(set(differences)) > 1:
        assert paired_p(first, second, "t") == pytest.approx(stats.ttest_rel(first, second).pvalue)
    sizes = [abs(d) for d in differences]
    if 0 not in sizes and len(set(sizes)) == len(sizes) <= 20:
        exact = stats.wilcoxon(first, second, method="exact").pvalue
        assert paired_p(first, second, "wilcoxon") == pytest.approx(exact)
    if 0 not in sizes and len(sizes) > 20:
        normal = stats.wilcoxon(first, second, method="asymptotic", correction=True).pvalue
        assert paired_p(first, second, "wilcoxon") == pytest.approx(normal, abs=0.01)


def test_holm_by_hand():
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": None}) == {
        "a": pytest.approx(0.03),
        "b": pytest.approx(0.06),  # 1 * 0.04, but never below the one before: 2 * 0.03
        "c": pytest.approx(0.06),
        "d": None,
    }
    assert holm({"a": 0.6, "b": 0.9}) == {"a": 1.0, "b": 1.0}


def test_few_seeds_cannot_convince_wilcoxon():
    assert smallest_p(5, "wilcoxon") == 0.0625
    assert smallest_p(6, "wilcoxon") < 0.05
    assert smallest_p(3, "t") == 0.0


def test_ranks_by_hand():
    blocks = [{"a": 0.9, "b": 0.8, "c": 0.8}, {"a": 0.5, "b": 0.7, "c": 0.6}]
    assert average_ranks(blocks, higher_is_better=True) == {"a": 2.0, "b": 1.75, "c": 2.25}
    assert average_ranks(blocks, higher_is_better=False) == {"a": 2.0, "b": 2.25, "c": 1.75}
    assert average_ranks([], higher_is_better=True) == {}
