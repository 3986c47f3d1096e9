"""Replacing labels by confident predictions, by hand."""

from __future__ import annotations

import torch

from fedwinnow.steps.site_labels import confident_labels, largest

LOGITS = torch.log(torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.2, 0.8], [0.5, 0.5]]))


def test_only_confident_and_only_among():
    labels = torch.tensor([1, 0, 0, 1])
    everyone = torch.ones(4, dtype=torch.bool)
    assert confident_labels(LOGITS, labels, 0.7, everyone).tolist() == [0, 0, 1, 1]
    assert confident_labels(LOGITS, labels, 0.7, torch.tensor([False, True, True, True])).tolist() == [1, 0, 1, 1]


def test_the_threshold_itself_is_not_enough():
    exactly_half = LOGITS[3:]
    assert confident_labels(exactly_half, torch.tensor([1]), 0.5, torch.tensor([True])).tolist() == [1]


def test_the_largest_by_hand():
    values = torch.tensor([0.3, 0.9, 0.9, 0.1])
    assert largest(values, 0).tolist() == [False] * 4
    assert largest(values, 1).tolist() == [False, True, False, False]  # equal ones in order
    assert largest(values, 3).tolist() == [True, True, True, False]
    assert largest(values, 9).tolist() == [True] * 4
