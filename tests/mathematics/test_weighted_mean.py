"""The streaming weighted mean."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from fedwinnow.errors import RunError
from fedwinnow.mathematics.aggregators import WeightedMean


def mean_of(values: list[torch.Tensor], weights: list[float]) -> torch.Tensor:
    mean = WeightedMean(["weights"])
    for value, weight in zip(values, weights, strict=True):
        mean.add({"weights": value}, weight)
    return mean.result()["weights"]


def test_by_hand():
    # (1 * 10 + 3 * 2 + 0 * 99) / 4 = 4
    values = [torch.tensor([10.0]), torch.tensor([2.0]), torch.tensor([99.0])]
    assert mean_of(values, [1, 3, 0]).tolist() == [4.0]


def test_integer_counters_take_the_largest():
    mean = WeightedMean(["weights", "counters"])
    mean.add({"weights": torch.zeros(1), "counters": torch.tensor([3, 9])}, 1)
    mean.add({"weights": torch.zeros(1), "counters": torch.tensor([5, 2])}, 100)
    assert mean.result()["counters"].tolist() == [5, 9]


numbers = some.floats(-1e3, 1e3, width=32)


@given(rows=some.lists(some.tuples(numbers, numbers, some.floats(0.01, 1e4)), min_size=1, max_size=12))
def test_it_is_the_weighted_mean(rows):
    values = [torch.tensor([first, second]) for first, second, _ in rows]
    weights = [weight for _, _, weight in rows]
    expected = np.average(np.array([value.numpy() for value in values], float), axis=0, weights=weights)
    np.testing.assert_allclose(mean_of(values, weights).numpy(), expected, rtol=1e-4, atol=1e-2)


@given(value=numbers, weights=some.lists(some.floats(0.01, 1e6), min_size=1, max_size=20))
def test_equal_models_give_exactly_that_model(value, weights):
    model = torch.tensor([value, 1 / 3])
    assert torch.equal(mean_of([model] * len(weights), weights), model)


def test_the_inputs_are_left_alone():
    first, second = torch.tensor([1.0]), torch.tensor([3.0])
    mean_of([first, second], [1, 1])
    assert (first.item(), second.item()) == (1.0, 3.0)


def test_no_weight_is_an_error():
    with pytest.raises(RunError, match="nothing to average"):
        mean_of([torch.zeros(1)], [0])
    with pytest.raises(RunError, match="0 or more"):
        mean_of([torch.zeros(1)], [-1])
