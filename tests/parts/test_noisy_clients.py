"""From indicators to noisy clients, by hand."""

from __future__ import annotations

import pytest
import torch

from fedwinnow.parts.noisy_clients import completed, most_frequent, noisy_sets, zero_to_one


def test_missing_classes_take_the_smallest_value_and_unknown_ones_go():
    table = torch.tensor([[1.0, 0.0, 0.0], [3.0, 5.0, 0.0], [0.0, 4.0, 0.0]])
    present = torch.tensor([[True, False, False], [True, True, False], [False, True, False]])
    # Class 0: client 2 gets min(1, 3); class 1: client 0 gets min(5, 4); nobody has class 2.
    assert completed(table, present).tolist() == [[1, 4], [3, 5], [1, 4]]


def test_every_class_goes_from_0_to_1_and_a_constant_one_is_0():
    table = torch.tensor([[1.0, 7.0], [3.0, 7.0], [2.0, 7.0]])
    assert zero_to_one(table).tolist() == [[0, 0], [1, 0], [0.5, 0]]


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
@pytest.mark.parametrize("normalise", [True, False])
def test_clear_cases_are_always_found(covariance, normalise):
    generator = torch.Generator().manual_seed(0)
    table = 0.5 + 0.1 * torch.rand(20, 3, generator=generator)
    table[12:] += 1.0
    sets = noisy_sets(
        table, torch.ones_like(table, dtype=torch.bool), fits=200, seed=0, normalise=normalise, covariance=covariance
    )
    assert (sets == (torch.arange(20) >= 12)).all()


def test_the_most_frequent_set_wins_and_of_equals_the_first():
    a, b, c = [True, False], [False, True], [True, True]
    winner, agreement = most_frequent(torch.tensor([a, b, b, c]))
    assert (winner.tolist(), agreement) == (b, 0.5)
    winner, agreement = most_frequent(torch.tensor([c, a, a, c]))
    assert (winner.tolist(), agreement) == (c, 0.5)
