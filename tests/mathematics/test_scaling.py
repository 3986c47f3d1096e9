"""Min-max scaling."""

from __future__ import annotations

import pytest
import torch

from fedwinnow.mathematics.scaling import zero_to_one


def test_from_the_smallest_to_the_largest():
    assert zero_to_one(torch.tensor([2.0, 4.0, 3.0]), 1e-12).tolist() == [0, 1, 0.5]


def test_values_that_hardly_differ_are_all_one():
    assert zero_to_one(torch.tensor([2.0, 2.0]), 1e-12).tolist() == [1, 1]
    assert zero_to_one(torch.tensor([2.0, 2.5]), 0.5).tolist() == [1, 1]
    assert zero_to_one(torch.tensor([]), 0.5).tolist() == []


def test_without_a_range_only_rounding_counts_as_equal():
    assert zero_to_one(torch.tensor([-1.0, 0.0, 3.0])).tolist() == [0, 0.25, 1]
    assert zero_to_one(torch.tensor([-1e-13, 0.0, 3e-13], dtype=torch.float64)).tolist() == pytest.approx([0, 0.25, 1])
    assert zero_to_one(torch.tensor([2.0, 2.0])).tolist() == [1, 1]
    assert zero_to_one(torch.tensor([0.0])).tolist() == [1]


def test_a_table_is_scaled_column_by_column():
    table = torch.tensor([[1.0, 7.0], [3.0, 7.0], [2.0, 7.0]])
    assert zero_to_one(table, 1e-12, alike=0.0).tolist() == [[0, 0], [1, 0], [0.5, 0]]
