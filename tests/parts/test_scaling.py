"""Min-max scaling."""

from __future__ import annotations

import torch

from fedwinnow.parts.scaling import zero_to_one


def test_from_the_smallest_to_the_largest():
    assert zero_to_one(torch.tensor([2.0, 4.0, 3.0]), 1e-12).tolist() == [0, 1, 0.5]


def test_values_that_hardly_differ_are_all_one():
    assert zero_to_one(torch.tensor([2.0, 2.0]), 1e-12).tolist() == [1, 1]
    assert zero_to_one(torch.tensor([2.0, 2.5]), 0.5).tolist() == [1, 1]
    assert zero_to_one(torch.tensor([]), 0.5).tolist() == []
