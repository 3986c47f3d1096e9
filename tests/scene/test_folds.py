"""Folds inside sites: whole groups, balanced sizes, the same lots whatever the other sites hold."""

from __future__ import annotations

import numpy as np
import pytest

from fedwinnow.data.groups import group_numbers
from fedwinnow.errors import UsageError
from fedwinnow.scene.folds import fill_up, folds, site_folds
from fedwinnow.scene.holdings import Holdings


def sizes_at(holdings: Holdings, fold: np.ndarray, site: int, count: int) -> np.ndarray:
    return np.bincount(fold[holdings.of(site)], minlength=count)


def test_without_groups_sizes_differ_by_at_most_one_at_every_site() -> None:
    holdings = Holdings.from_clients(np.repeat(np.arange(6), [1, 2, 3, 7, 31, 100]), 6)
    fold = folds(holdings, None, 3, seed=1)
    for site in range(6):
        sizes = sizes_at(holdings, fold, site, 3)
        assert sizes.max() - sizes.min() <= 1
    assert set(fold.tolist()) == {0, 1, 2}


def test_small_sites_do_not_all_fill_the_same_fold() -> None:
    holdings = Holdings.from_clients(np.arange(300), 300)  # one sample each
    assert np.bincount(folds(holdings, None, 3, seed=0), minlength=3).min() > 60


def test_a_group_is_in_one_fold_and_sizes_are_balanced() -> None:
    groups = np.repeat([f"p{number}" for number in range(40)], np.arange(40) % 7 + 1)
    holdings = Holdings.from_clients(np.zeros(len(groups), np.int64), 1)
    fold = folds(holdings, groups, 3, seed=4)
    for name in np.unique(groups):
        assert len(set(fold[groups == name].tolist())) == 1
    sizes = np.bincount(fold)
    assert sizes.max() - sizes.min() <= 1  # ones and twos fill the gaps that large groups leave


def test_groups_by_hand() -> None:
    """Sizes 5, 3, 2: each its own fold; a fourth group of 1 goes to the fold with 2."""
    groups = np.array([9] * 5 + [4] * 3 + [7] * 2 + [1])
    fold = folds(Holdings.from_clients(np.zeros(11, np.int64), 1), groups, 3, seed=0)
    assert len({int(fold[0]), int(fold[5]), int(fold[8])}) == 3
    assert fold[10] == fold[8]


def test_fill_up_by_hand() -> None:
    """Fold 1 from 0 to 1; folds 1 and 2 are then level and take turns: 3, 2, 3 at the end."""
    assert fill_up(np.array([3, 0, 1]), 4).tolist() == [1, 2, 1, 2]


def test_names_of_groups_do_not_matter() -> None:
    holdings = Holdings.from_clients(np.arange(12) % 2, 2)
    numbers = np.repeat(np.arange(4), 3)
    names = np.array(["zeta", "alpha", "mu", "beta"])[numbers]
    assert (folds(holdings, numbers, 3, 5) == folds(holdings, names, 3, 5)).all()
    assert group_numbers(np.array(["b", "a", "b"])).tolist() == [0, 1, 0]


def test_a_site_alone_finds_what_it_gets_among_others() -> None:
    holdings = Holdings.from_clients(np.repeat([0, 1, 2], [10, 17, 9]), 3)
    groups = np.arange(36) // 2
    groups[9:11] = [90, 91]  # no group at two sites
    groups[26:28] = [92, 93]
    everywhere = folds(holdings, groups, 3, seed=8)
    for site in range(3):
        rows = holdings.rows[holdings.of(site)]
        assert (site_folds(groups[rows], 3, 8, site, np.arange(len(rows))) == everywhere[holdings.of(site)]).all()


def test_seed_and_site_change_the_lots() -> None:
    holdings = Holdings.from_clients(np.repeat([0, 1], 60), 2)
    fold = folds(holdings, None, 3, seed=0)
    assert (fold != folds(holdings, None, 3, seed=1)).any()
    assert (fold[:60] != fold[60:]).any()
    assert (fold == folds(holdings, None, 3, seed=0)).all()


def test_a_group_or_sample_at_two_sites_is_in_one_fold() -> None:
    groups = np.array(["x", "a", "b", "c", "x", "d", "e", "f"])
    holdings = Holdings.from_clients(np.array([0, 0, 0, 0, 1, 1, 1, 1]), 2)
    for seed in range(10):
        fold = folds(holdings, groups, 3, seed)
        assert fold[0] == fold[4]
    twice = Holdings.from_pairs(np.array([0, 1, 2, 0, 3, 4]), np.array([0, 0, 0, 1, 1, 1]), 2)
    for seed in range(10):
        fold = folds(twice, None, 3, seed)
        assert len(set(fold[twice.rows == 0].tolist())) == 1
        assert sizes_at(twice, fold, 0, 3).tolist() == [1, 1, 1]


def test_copies_are_in_one_fold_at_all_sites() -> None:
    content = np.arange(60)
    content[[7, 20, 45]] = 3  # three more of the fourth sample, two of them at other sites
    holdings = Holdings.from_clients(np.repeat([0, 1, 2], 20), 3)
    for seed in range(5):
        fold = folds(holdings, None, 3, seed, content)
        assert len(set(fold[[3, 7, 20, 45]].tolist())) == 1
        assert np.ptp(np.bincount(fold, minlength=3)) <= 3


def test_copies_at_one_site_alone_and_among_others() -> None:
    content = np.arange(36)
    content[[4, 9]] = 1
    content[[30, 31]] = 29
    holdings = Holdings.from_clients(np.repeat([0, 1, 2], [10, 17, 9]), 3)
    everywhere = folds(holdings, None, 3, 8, content)
    for site in range(3):
        mine = holdings.of(site)
        alone = site_folds(None, 3, 8, site, group_numbers(content[mine]))
        assert (alone == everywhere[mine]).all()


def test_without_copies_nothing_changes() -> None:
    holdings = Holdings.from_clients(np.arange(50) % 4, 4)
    groups = np.arange(50) // 3
    for given in (None, groups):
        assert (folds(holdings, given, 3, 2) == folds(holdings, given, 3, 2, np.arange(50))).all()


def test_empty_sites_and_bad_counts() -> None:
    holdings = Holdings.from_clients(np.array([2, 2, -1]), 3)
    assert len(folds(holdings, None, 3, seed=0)) == 2
    with pytest.raises(UsageError, match="1 folds were asked for"):
        folds(holdings, None, 1, seed=0)
    with pytest.raises(UsageError, match="0 folds"):
        site_folds(np.arange(3), 0, 0, 0, np.arange(3))
