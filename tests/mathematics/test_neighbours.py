"""The nearest samples of a site: similarities, votes, near-duplicates and outliers, worked out by hand."""

from __future__ import annotations

import pytest
import torch

from fedwinnow.mathematics import neighbours
from fedwinnow.mathematics.neighbours import near_duplicates, nearest, outliers, votes

# On a line at 0, 1 and 3: the mean is 4/3, two samples by chance have the squared distance 28/9.
LINE = torch.tensor([[0.0], [1.0], [3.0]])


def test_similarity_by_hand():
    near = nearest(LINE, 2)
    assert near.places.tolist() == [[1, 2], [0, 2], [1, 0]]
    expected = [[19 / 28, -53 / 28], [19 / 28, -8 / 28], [-8 / 28, -53 / 28]]
    assert torch.allclose(near.similarity, torch.tensor(expected, dtype=torch.float64))


def test_votes_by_hand():
    # The other two labels are both 1: with one imagined sample of each class (1, 3) / 4; then neighbour 1 votes.
    found = votes(nearest(LINE, 1), torch.tensor([0, 1, 1]), 2)
    assert found[0].tolist() == pytest.approx([7 / 47, 40 / 47])
    assert found[2].tolist() == pytest.approx([0.5, 0.5])  # its neighbour is farther than chance: no vote


def test_the_own_label_has_no_vote():
    rows = torch.randn(40, 3, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(40) % 3
    before, other = votes(nearest(rows), labels, 3), labels.clone()
    other[7] = (labels[7] + 1) % 3
    assert torch.equal(votes(nearest(rows), other, 3)[7], before[7])


def test_copies_have_no_vote():
    rows = torch.randn(40, 3, generator=torch.Generator().manual_seed(1)) * 7 + 5
    rows[20] = rows[7]
    labels = torch.arange(40) % 2
    found = votes(nearest(rows, 1), labels, 2)
    assert found[7].tolist() == pytest.approx([21 / 41, 20 / 41])  # by frequencies: the copy is the only neighbour
    assert found[20].tolist() == pytest.approx([20 / 41, 21 / 41])


def test_blocks_change_nothing(monkeypatch):
    rows = torch.randn(50, 4, generator=torch.Generator().manual_seed(2))
    whole = nearest(rows)
    monkeypatch.setattr(neighbours, "BLOCK", 7)
    parts = nearest(rows)
    assert torch.equal(whole.places, parts.places)
    assert torch.allclose(whole.similarity, parts.similarity)


def test_one_sample_and_equal_samples():
    alone = nearest(torch.ones(1, 2))
    assert votes(alone, torch.tensor([1]), 2).tolist() == [[0.5, 0.5]]
    assert near_duplicates(alone).tolist() == [-1]
    same = nearest(torch.ones(3, 2), 2)
    assert same.similarity.tolist() == [[1.0, 1.0]] * 3
    assert all(place != other >= 0 for place, other in enumerate(near_duplicates(same).tolist()))


def test_a_copy_with_a_scratch_is_a_near_duplicate_and_a_multiple_is_not():
    rows = torch.randn(60, 8, generator=torch.Generator().manual_seed(3))
    rows[10], rows[11] = rows[4] + 0.01, 3 * rows[5]
    found = near_duplicates(nearest(rows))
    assert found[10] == 4
    assert found[4] == 10
    assert found[11] == -1
    assert int((found >= 0).sum()) == 2


def test_a_sample_far_from_all_others_is_an_outlier():
    rows = torch.randn(60, 8, generator=torch.Generator().manual_seed(3))
    assert not outliers(nearest(rows)).any()
    rows[10] = 40.0
    assert outliers(nearest(rows)).nonzero().tolist() == [[10]]
    assert not outliers(nearest(rows[:19])).any()  # too few to say
