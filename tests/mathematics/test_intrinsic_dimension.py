"""Local intrinsic dimensionality, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from fedwinnow.mathematics import intrinsic_dimension
from fedwinnow.mathematics.intrinsic_dimension import local_intrinsic_dimensionality

FOUR = torch.tensor([[0.0], [1.0], [3.0], [7.0]])


def test_four_points_on_a_line_with_two_neighbours():
    # distances to the two nearest: 0: 1, 3; 1: 1, 2; 3: 2, 3; 7: 4, 6
    pairs = [(1, 3), (1, 2), (2, 3), (4, 6)]
    expected = [-2 / (math.log(near / (far + 1e-6)) + math.log(far / (far + 1e-6))) for near, far in pairs]
    assert local_intrinsic_dimensionality(FOUR, 2).tolist() == pytest.approx(expected, rel=1e-12)


def test_fewer_points_than_neighbours_take_all_others():
    assert torch.equal(local_intrinsic_dimensionality(FOUR, 20), local_intrinsic_dimensionality(FOUR, 3))


def test_a_point_that_coincides_with_a_neighbour_has_none():
    assert local_intrinsic_dimensionality(torch.tensor([[0.0], [0.0], [1.0], [3.0]]), 2).tolist()[:2] == [0, 0]
    assert local_intrinsic_dimensionality(torch.ones(5, 3)).tolist() == [0] * 5


@pytest.mark.parametrize("count", [0, 1])
def test_nobody_to_compare_with(count):
    assert local_intrinsic_dimensionality(torch.zeros(count, 2)).tolist() == [0] * count


def test_blocks_do_not_show(monkeypatch):
    points = torch.randn(23, 3, generator=torch.Generator().manual_seed(0))
    whole = local_intrinsic_dimensionality(points, 4)
    monkeypatch.setattr(intrinsic_dimension, "BLOCK", 5)
    assert torch.equal(local_intrinsic_dimensionality(points, 4), whole)


def test_it_is_about_the_dimension_of_the_space():
    generator = torch.Generator().manual_seed(0)
    line, cube = torch.rand(800, 1, generator=generator), torch.rand(800, 3, generator=generator)
    assert float(local_intrinsic_dimensionality(line).mean()) == pytest.approx(1, abs=0.2)
    assert float(local_intrinsic_dimensionality(cube).mean()) == pytest.approx(3, abs=0.6)
