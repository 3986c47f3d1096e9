"""Strata from a histogram, and how looks are shared out over them."""

from __future__ import annotations

import numpy as np
import pytest

from fedwinnow.mathematics.strata import (
    BINS,
    Strata,
    bins_of,
    first_looks,
    first_of_all,
    histogram,
    next_looks,
    shared_out,
)


def test_bins_are_a_quarter_wide_and_the_outermost_are_open():
    # from 16 down: bin 0 is 15.75 and above, bin 63 is 0 to 0.25, bin 64 is -0.25 to 0, bin 127 the lowest
    score = np.array([99.0, 16.0, 15.75, 15.74, 0.0, 0.2499, 0.25, -0.01, -15.76, -16.0, -99.0, np.inf, -np.inf])
    assert bins_of(score).tolist() == [0, 0, 0, 1, 63, 63, 62, 64, 127, 127, 127, 0, 127]
    assert histogram(score).sum() == len(score)


def counts_with(**labels: int):
    counts = np.zeros(BINS, np.int64)
    for name, many in labels.items():
        counts[int(name[1:])] = many
    return counts


def test_a_stratum_closes_when_its_target_is_reached():
    # 5 and 4: 9 >= 8 closes; the next target is max(1.41 x 9, 9 + 8) = 17, so 7 more (16) stay open, 2 more (18) close;
    # then 26 = 18 + 8 (1.41 x 18 = 25.4); 30 close at once: 48; then 1.41 x 48 = 67.7: 20 more make 68
    strata = Strata.of(counts_with(b3=5, b5=4, b6=7, b9=2, b20=30, b21=10, b22=10, b40=100))
    assert strata.sizes.tolist() == [9, 9, 30, 20, 100]
    assert strata.last.tolist() == [5, 9, 20, 22, BINS - 1]
    assert strata.ends.tolist() == [9, 18, 48, 68, 168]


def test_a_few_labels_at_the_end_join_the_last_stratum():
    assert Strata.of(counts_with(b3=10, b50=7)).sizes.tolist() == [17]
    assert Strata.of(counts_with(b3=10, b50=8)).sizes.tolist() == [10, 8]
    assert Strata.of(counts_with(b3=3)).sizes.tolist() == [3]


def test_depth_is_the_log_of_the_share_above_the_middle():
    strata = Strata.of(counts_with(b3=10, b50=30))
    assert strata.depth.tolist() == pytest.approx([np.log(5 / 40), np.log(25 / 40)])


def test_every_label_is_in_the_stratum_that_counts_it():
    score = np.random.RandomState(0).normal(-3, 4, 5000)
    strata = Strata.of(histogram(score))
    assert np.bincount(strata.places(score)).tolist() == strata.sizes.tolist()
    assert 10 <= len(strata) <= 20
    part = score[:700]  # one site
    assert strata.sizes_of(histogram(part)).tolist() == np.bincount(strata.places(part), minlength=len(strata)).tolist()


def test_the_first_looks_are_equally_many_and_the_rest_goes_to_the_top():
    assert first_looks(np.array([9, 9, 30, 200]), 15).tolist() == [4, 4, 4, 3]
    assert first_looks(np.array([2, 9, 30, 200]), 15).sum() == 15
    assert first_looks(np.array([2, 9, 30, 200]), 15)[0] == 2
    assert first_looks(np.array([3]), 15).tolist() == [3]  # there are no more


def test_fewer_looks_than_strata_reach_from_top_to_bottom():
    # (0.5, 1.5, 2.5) x 6 / 3 = 1, 3, 5
    assert first_looks(np.full(6, 50), 3).tolist() == [0, 1, 0, 1, 0, 1]


def test_further_looks_go_where_it_is_open_whether_half_are_wrong():
    # weights 0.0001, 0.2501, 0.1601, 0.0001 of 10: 6.1, 3.9
    found = next_looks(np.full(4, 50), np.zeros(4, np.int64), np.array([1.0, 0.5, 0.2, 0.0]), 10)
    assert found.tolist() == [0, 6, 4, 0]
    # the second stratum has 3 labels left: the other 7 go to the third
    found = next_looks(np.full(4, 50), np.array([0, 47, 0, 0]), np.array([1.0, 0.5, 0.2, 0.0]), 10)
    assert found.tolist() == [0, 3, 7, 0]


def test_shares_are_whole_and_complete():
    assert shared_out(np.array([1.0, 1.0, 1.0]), np.array([9, 9, 9]), 10).tolist() == [4, 3, 3]
    assert shared_out(np.array([0.0, 0.0]), np.array([5, 5]), 4).tolist() == [2, 2]
    assert shared_out(np.array([1.0, 0.0]), np.array([2, 5]), 4).tolist() == [2, 2]
    assert shared_out(np.array([1.0, 2.0]), np.array([1, 1]), 9).tolist() == [1, 1]
    assert shared_out(np.array([1.0]), np.array([5]), 0).tolist() == [0]


def test_equal_labels_are_shared_out_between_sites():
    # bins of a quarter: one label of each site above, then 4 and 2 in the bin from 1 to 1.25, of which 3 are taken
    sites = [histogram(np.array(score)) for score in ([3.0, 1.2, 1.1, 1.1, 1.0], [2.0, 1.2, 1.1])]
    assert first_of_all(sites, 5) == [3, 2]
    assert first_of_all(sites, 99) == [5, 3]
    assert first_of_all(sites, 1) == [1, 0]
