"""A test part, and subsets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedwinnow.data.arrays import from_arrays
from fedwinnow.data.dataset import Dataset
from fedwinnow.data.load import apportion, shrink, thinned, with_test_part
from fedwinnow.errors import DataError, UsageError


def made(counts: list[int], test: list[int] | None = None) -> Dataset:
    labels = np.repeat(np.arange(len(counts)), counts)
    more = {}
    if test is not None:
        test_labels = np.repeat(np.arange(len(test)), test)
        more = {"x_test": test_labels[:, None], "y_test": test_labels}
    return from_arrays(np.arange(len(labels))[:, None], labels, **more)


def test_every_class_gives_its_share():
    dataset = with_test_part(made([10, 20, 5]), 0.2, seed=1)
    assert np.bincount(dataset.test.labels).tolist() == [2, 4, 1]
    assert np.bincount(dataset.train.labels).tolist() == [8, 16, 4]


@given(st.lists(st.integers(1, 30), min_size=2, max_size=6), st.floats(0.01, 0.99), st.integers(0, 100))
def test_the_parts_make_up_the_whole_and_no_class_vanishes(counts, share, seed):
    try:
        dataset = with_test_part(made(counts), share, seed)
    except DataError:
        assert all(count == 1 or count * share < 0.5 for count in counts)
        return
    assert sorted([*dataset.train.ids, *dataset.test.ids]) == list(range(sum(counts)))
    assert np.bincount(dataset.train.labels, minlength=len(counts)).min() >= 1
    labels = np.repeat(np.arange(len(counts)), counts)
    for part in (dataset.train, dataset.test):
        assert (part.features.take(np.arange(len(part)))[:, 0] == part.ids).all()
        assert (part.labels == labels[part.ids]).all()


def test_the_seed_decides():
    first, again, other = (with_test_part(made([50, 50]), 0.2, seed).test.ids.tolist() for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_what_stays_as_it_is():
    with_part, without = made([5, 5], [1, 1]), made([5, 5])
    assert with_test_part(with_part, 0.5, 0) is with_part
    assert with_test_part(without, 0, 0) is without


def test_shares_that_make_no_sense():
    for share in (-0.1, 1, 1.5, float("nan")):
        with pytest.raises(UsageError, match="--test"):
            with_test_part(made([5, 5]), share, 0)
    with pytest.raises(DataError, match="less than one sample"):
        with_test_part(made([1, 1, 1]), 0.5, 0)


def test_shrinking_keeps_shares_and_every_class():
    dataset = shrink(made([60, 30, 1], [6, 3, 1]), train=9, test=3)
    assert np.bincount(dataset.train.labels).tolist() == [5, 3, 1]
    assert np.bincount(dataset.test.labels, minlength=3).tolist() == [2, 1, 0]
    again = shrink(made([60, 30, 1], [6, 3, 1]), train=9, test=3)
    assert dataset.train.ids.tolist() == again.train.ids.tolist()


def test_a_subset_larger_than_the_set_is_the_set():
    assert len(shrink(made([2, 2]), train=100).train) == 4


def test_subsets_that_cannot_be():
    with pytest.raises(UsageError, match="2 classes"):
        shrink(made([5, 5]), train=1)
    with pytest.raises(UsageError, match="no test part"):
        shrink(made([5, 5]), test=1)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=20), st.data())
def test_apportioned_numbers_add_up(counts, data):
    total = data.draw(st.integers(len(counts), sum(counts)))
    array = np.array(counts)
    wanted = apportion(array, total, least=1)
    assert wanted.sum() == total
    assert ((wanted >= 1) & (wanted <= array)).all()


def test_a_long_tail_falls_by_equal_ratios():
    dataset = thinned(made([80, 80, 80], [5, 5, 5]), 4)
    assert np.bincount(dataset.train.labels).tolist() == [80, 40, 20]  # 4^0, 4^(-1/2), 4^(-1)
    assert np.bincount(dataset.test.labels).tolist() == [5, 5, 5]
    assert dataset.train.ids.tolist() == thinned(made([80, 80, 80], [5, 5, 5]), 4).train.ids.tolist()


def test_no_class_is_thinned_away():
    assert np.bincount(thinned(made([3, 3, 3]), 1e6).train.labels).tolist() == [3, 1, 1]


def test_no_imbalance_changes_nothing():
    dataset = made([3, 3])
    assert thinned(dataset, 1) is dataset
