"""Which losses are small, and how many are forgotten."""

from __future__ import annotations

import pytest
import torch

from fedwinnow.mathematics.small_loss import estimated_rate, forgotten_share, kept_count, smallest, smallest_of


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


@pytest.mark.parametrize("forgotten", [0.0, 0.2, 0.25, 0.9, 1.0])
def test_the_smallest_of_a_part_without_counting_it(forgotten):
    generator = torch.Generator().manual_seed(1)
    for size in (1, 2, 7, 32):
        for _ in range(20):
            losses = torch.randint(4, (size,), generator=generator).float()  # with ties
            losses[0] = (losses[0], torch.inf, torch.nan)[int(torch.randint(3, (), generator=generator))]
            among = torch.rand(size, generator=generator) < 0.6
            among[int(torch.randint(size, (), generator=generator))] = True
            pool = among.nonzero().flatten()
            expected = pool[smallest(losses[pool], kept_count(len(pool), forgotten))]
            found = smallest_of(losses, among, forgotten)
            assert found.nonzero().flatten().tolist() == sorted(expected.tolist())
