"""Numbers as integers modulo 2^64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedwinnow.errors import RunError
from fedwinnow.mathematics.fixed_point import (
    LARGEST,
    LARGEST_SUM,
    MOST_SAMPLES,
    as_numbers,
    as_ring,
    largest_error,
    most_samples,
    summed,
    weighted,
)


def test_by_hand() -> None:
    ring, clipped = weighted(torch.tensor([0.5, -0.25]), 3, 3)
    assert ring.tolist() == [3 * 2**23, 2**64 - 3 * 2**22]  # 1.5 and -0.75 in units of 2^-24
    assert clipped == 0
    assert as_numbers(ring, 3).tolist() == [0.5, -0.25]


def test_values_out_of_range_are_clipped_and_counted() -> None:
    ring, clipped = weighted(torch.tensor([1e9, -1e9, LARGEST, 1.0]), 2, 3)
    assert clipped == 2
    assert as_numbers(ring, 2).tolist() == [LARGEST, -LARGEST, LARGEST, 1.0]


def test_the_largest_sum_does_not_wrap_around() -> None:
    for sites in (3, 7, 100):
        most = most_samples(sites)
        one, _ = weighted(torch.tensor([LARGEST, -LARGEST]), most, sites)
        total = as_numbers(np.sum([one] * sites, axis=0, dtype=np.uint64), sites * most)
        assert total.tolist() == [LARGEST, -LARGEST]
        most_of_sum = summed("x", torch.tensor([LARGEST_SUM / sites], dtype=torch.float64), sites)
        assert float(as_numbers(np.sum([most_of_sum] * sites, axis=0, dtype=np.uint64))) == pytest.approx(LARGEST_SUM)


def test_too_many_samples_and_too_large_sums_are_refused() -> None:
    with pytest.raises(RunError, match="5592405"):
        weighted(torch.zeros(1), MOST_SAMPLES // 3 + 1, 3)
    with pytest.raises(RunError, match="'statistics' has the value 2e"):
        summed("statistics", torch.tensor([2e11]), 3)
    with pytest.raises(RunError, match="nan"):
        summed("statistics", torch.tensor([float("nan")]), 3)


def test_a_tie_is_rounded_to_the_even_number() -> None:
    assert as_ring(torch.tensor([0.5, 1.5, -0.5], dtype=torch.float64)).tolist() == [0, 2, 0]


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(st.floats(-LARGEST, LARGEST, width=32), st.integers(1, 100_000)), min_size=3, max_size=40))
def test_the_stated_error_holds(sites: list[tuple[float, int]]) -> None:
    rings = [weighted(torch.tensor([value], dtype=torch.float64), n, len(sites))[0] for value, n in sites]
    samples = sum(n for _, n in sites)
    found = float(as_numbers(np.sum(rings, axis=0, dtype=np.uint64), samples))
    exact = sum(int(value * 2**160) * n for value, n in sites) / samples / 2**160
    last_bits = 2.0**-52 * max(abs(value) for value, _ in sites) * 2
    assert abs(found - exact) <= largest_error(len(sites), samples) + last_bits
