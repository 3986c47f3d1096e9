"""Which losses are small, and how many are forgotten."""

from __future__ import annotations

import pytest
import torch

from fedwinnow.mathematics.small_loss import estimated_rate, forgotten_share, kept_count, smallest


def test_the_smallest_in_order_and_of_equal_ones_the_first():
    assert smallest(torch.tensor([3.0, 1.0, 2.0, 1.0]), 3).tolist() == [1, 3, 2]
    assert smallest(torch.tensor([1.0, 1.0, 1.0]), 2).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("size", "forgotten", "down", "up"),
    [(10, 0.25, 7, 8), (10, 0.2, 8, 8), (10, 0.9, 1, 1), (3, 0.9, 1, 1), (1, 1.0, 1, 1), (5, 0.0, 5, 5)],
)
def test_how_many_of_a_batch_are_kept(size, forgotten, down, up):
    assert kept_count(size, forgotten) == down
    assert kept_count(size, forgotten, up=True) == up


def test_the_schedule_of_the_paper():
    # tau min(t^c / T_k, 1)
    assert [forgotten_share(t, 0.4, 4) for t in (1, 2, 4, 9)] == pytest.approx([0.1, 0.2, 0.4, 0.4])
    assert [forgotten_share(t, 0.4, 8, exponent=2.0) for t in (1, 2, 3)] == pytest.approx([0.05, 0.2, 0.4])
    assert forgotten_share(1, 0.4, 0) == 0.4


def test_the_schedule_of_released_codes():
    # from 0 to tau^c in T_k steps, then tau
    found = [forgotten_share(t, 0.5, 3, exponent=2.0, of_rate=True) for t in (1, 2, 3, 4)]
    assert found == pytest.approx([0.0, 0.125, 0.25, 0.5])
    assert forgotten_share(1, 0.5, 1, of_rate=True) == 0.0


def test_the_estimated_rate_is_the_share_of_the_upper_heap():
    losses = torch.tensor([0.1, 0.12, 0.09, 0.11, 0.1, 0.13, 3.0, 3.1])
    assert estimated_rate(losses) == 0.25
    assert estimated_rate(torch.full((4,), 2.0)) == 0.0
