"""arfl: its regression by hand, its edge cases, its cost, and the shared tester."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from by_hand import one_server
from fedwinnow.api import run
from fedwinnow.methods.arfl import Arfl, middle, repeated_median_line, residual_weights
from fedwinnow.testing import MethodTester, toy_data


class TestArfl(MethodTester):
    method: ClassVar[str] = "arfl"


class TestArflBySize(MethodTester):
    method: ClassVar[str] = "arfl:by_size=true,power=1"


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values).double().unsqueeze(1)


def replies(*models: list[float], samples: tuple[int, ...] | None = None) -> Any:
    sizes = samples or (10,) * len(models)
    return iter(
        (client, {"weights": torch.tensor(model), "samples": torch.tensor(size)})
        for client, (model, size) in enumerate(zip(models, sizes, strict=True))
    )


def merged(tmp_path, method, *models, samples=None):
    server = one_server(tmp_path)
    method.merge(server, replies(*models, samples=samples))
    return server


# --- the regression -------------------------------------------------------------------------------------------------


def test_the_line_of_repeated_medians_by_hand():
    # Slopes from 0: 1 and 2, from 1: 1 and 3, from 4: 2 and 3; their medians 1.5, 2, 2.5; the median of these is 2.
    # The line passes the median 1 at the middle rank.
    assert repeated_median_line(column(0, 1, 4)).flatten().tolist() == [-1, 1, 3]


def test_an_outlier_does_not_move_the_line():
    assert repeated_median_line(column(0, 1, 2, 3, 100)).flatten().tolist() == [0, 1, 2, 3, 4]


def test_an_even_number_of_clients():
    # Slopes from 0: 1, 1, 3; from 1: 1, 1, 4; from 2: 1, 1, 7; from 9: 3, 4, 7. Their medians: 1, 1, 1, 4.
    assert repeated_median_line(column(0, 1, 2, 9)).flatten().tolist() == [0, 1, 2, 3]
    assert middle(column(0, 1, 4, 9)).item() == 2.5


def test_weights_of_residuals_by_hand():
    # Residuals 1, 0, 1: the median without the smallest is 1, so the scale is 1.4826 * (1 + 5/2).
    # H = 1/3 + 1/2 at the ends, so h = sqrt(1/6); K = 0.1 sqrt(2/3).
    weight = 0.1 * math.sqrt(2 / 3) * math.sqrt(1 / 6) * 1.4826 * 3.5
    assert residual_weights(column(1, 0, -1), 0.1).flatten().tolist() == pytest.approx([weight, 1, weight], rel=1e-6)
    assert residual_weights(column(1, 0, -1), 2.0).flatten().tolist() == [1, 1, 1]


# --- the average ----------------------------------------------------------------------------------------------------


def test_two_parameters_by_hand(tmp_path):
    # The first parameter says nothing (all weights are 1, their deviation is 0). In the second one the ends weigh a.
    a = 0.1 * math.sqrt(2 / 3) * math.sqrt(1 / 6) * 1.4826 * 3.5
    server = merged(tmp_path, Arfl(reach=0.1), [7.0, 1.0], [8.0, 4.0], [9.0, 0.0])
    expected = [(7 + 8 * a**2 + 9 * a**2) / (1 + 2 * a**2), (1 + 4 * a**2) / (1 + 2 * a**2)]
    assert server.weights["weights"].tolist() == pytest.approx(expected, rel=1e-5)
    plain = merged(tmp_path, Arfl(reach=0.1, power=1.0), [7.0, 1.0], [8.0, 4.0], [9.0, 0.0])
    assert plain.weights["weights"].tolist()[1] == pytest.approx((1 + 4 * a) / (1 + 2 * a), rel=1e-5)
    noted = server.notes["client_weights"]
    assert noted == {"0": round(1 / (1 + 2 * a**2), 4)} | {name: round(a**2 / (1 + 2 * a**2), 4) for name in ("1", "2")}


def test_a_parameter_with_more_spread_weights_counts_more(tmp_path):
    # Client 2 is off in one parameter, client 0 in another one: both are weighed by w * std(w), summed.
    models = torch.tensor([[0.0, 50.0], [1.0, 1.0], [100.0, 2.0], [2.0, 0.0], [3.0, 3.0]])
    by_hand = torch.zeros(5).double()
    for parameter in models.double().T:
        ordered, order = parameter.unsqueeze(1).sort(0)
        weight = residual_weights(ordered - repeated_median_line(ordered), 2.0).flatten()
        by_hand[order.flatten()] += weight * weight.std()
    shares = Arfl().shares(models)
    assert shares.tolist() == pytest.approx(((by_hand / by_hand.max()) ** 2).tolist())
    assert shares[[0, 2]].max() < shares[[1, 3, 4]].min()


def test_a_far_value_is_put_on_the_line(tmp_path):
    models = torch.tensor([[0.0], [1.0], [2.0], [3.0], [100.0]])
    Arfl().shares(models)
    assert models.flatten().tolist() == [0, 1, 2, 3, 4]
    server = merged(tmp_path, Arfl(), [0.0], [1.0], [2.0], [3.0], [100.0])
    assert server.weights["weights"].item() == pytest.approx(1.5)
    kept = torch.tensor([[0.0], [1.0], [2.0], [3.0], [100.0]])
    Arfl(threshold=0.0).shares(kept)
    assert kept[4].item() == 100


def test_blocks_change_nothing(monkeypatch):
    models = torch.randn(5, 23, generator=torch.Generator().manual_seed(0))
    whole, parts = models.clone(), models.clone()
    shares = Arfl().shares(whole)
    monkeypatch.setattr("fedwinnow.methods.arfl.BLOCK", 20)
    assert Arfl().shares(parts).tolist() == pytest.approx(shares.tolist())
    assert torch.equal(whole, parts)


# --- edges ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("models", [([3.0],), ([2.0], [4.0]), ([3.0], [3.0], [3.0])])
def test_few_clients_or_equal_models_are_averaged_equally(tmp_path, models):
    assert merged(tmp_path, Arfl(), *models).weights["weights"].item() == 3


def test_sizes_count_only_where_asked_for(tmp_path):
    models, samples = ([0.0], [4.0]), (10, 30)
    assert merged(tmp_path, Arfl(), *models, samples=samples).weights["weights"].item() == 2
    assert merged(tmp_path, Arfl(by_size=True), *models, samples=samples).weights["weights"].item() == 3


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-100, 100, width=32), min_size=3, max_size=9), st.randoms())
def test_the_order_of_the_clients_does_not_matter(values, luck):
    shuffled = list(range(len(values)))
    luck.shuffle(shuffled)
    if len(set(values)) < len(values):
        return  # equal values share their ranks by the order in which they came
    one, other = torch.tensor(values).unsqueeze(1), torch.tensor(values).unsqueeze(1)[shuffled]
    first, second = Arfl().shares(one), Arfl().shares(other)
    assert second.tolist() == pytest.approx(first[shuffled].tolist())
    assert torch.equal(one[shuffled], other)


def test_what_is_counted_is_that_of_fedavg(tmp_path):
    settings = {"data": toy_data(120), "model": "linear", "clients": 4, "rounds": 1, "epochs": 3, "participation": 1.0}
    row = run(out=tmp_path, method="arfl", **settings).rounds[0]
    assert (row["forward_samples"], row["backward_samples"]) == (3 * 120, 3 * 120)
    assert (row["bytes_down"], row["bytes_up"]) == (4 * 36, 4 * (36 + 8))
    assert sum(row["client_weights"].values()) == pytest.approx(1, abs=1e-3)
