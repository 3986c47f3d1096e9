"""S-FedAvg: the game by hand, who is drawn, and the shared tester."""

from __future__ import annotations

from itertools import permutations
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from by_hand import identity, one_client, one_server
from fedwinnow.errors import UsageError
from fedwinnow.federation.method import find_method
from fedwinnow.federation.server_samples import ServerSamples
from fedwinnow.steps.contributions import shapley_values, worth
from fedwinnow.testing import MethodTester, toy_data
from stages import run


def bench(rows=((1.0, 0.0), (0.0, 1.0), (2.0, 1.0), (0.5, 0.6)), labels=(0, 1, 0, 1)) -> ServerSamples:
    """Trusted samples; the identity is right about all of them."""
    return ServerSamples(**vars(one_client(rows, list(labels))), purpose="trusted")


def scaled(value: float) -> dict[str, torch.Tensor]:
    return {"weights": identity()["weights"] * value}


class TestSFedAvg(MethodTester):
    method: ClassVar[str] = "s_fedavg"
    settings: ClassVar[dict[str, Any]] = {"trusted": 0.2}


class TestTruncatedWithLoss(MethodTester):
    method: ClassVar[str] = "s_fedavg:measure=loss,truncate=0.01,temperature=0.01"
    settings: ClassVar[dict[str, Any]] = {"trusted": 5}


def test_what_a_model_is_worth():
    trusted = bench()
    assert worth(trusted, scaled(1), "accuracy") == 1.0
    assert worth(trusted, scaled(-1), "accuracy") == 0.0
    # margins 1, 1, 1 and 0.1
    losses = np.log1p(np.exp(-np.array([1, 1, 1, 0.1])))
    assert worth(trusted, scaled(1), "loss") == pytest.approx(-losses.mean(), abs=1e-6)
    assert worth(trusted, {"weights": torch.full((6,), torch.nan)}, "loss") == -1e6


def test_shapley_values_by_hand(monkeypatch):
    # Means of +3, -1 and -1 (times the identity): right everywhere exactly where their sum is above 0.
    #   {} from zeros: all logits are 0, so class 0: half right. {a} 1, {b} 0, {c} 0, {ab} 1, {ac} 1, {bc} 0, {abc} 1
    # Orders: abc: a .5, b 0, c 0; acb the same; bac: b -.5, a 1, c 0; cab: c -.5, a 1, b 0;
    #   bca: b -.5, c 0, a 1; cba: c -.5, b 0, a 1.  Means: a 5/6, b -1/6, c -1/6.
    orders = iter(permutations(range(3)))
    monkeypatch.setattr(torch, "randperm", lambda count, generator: torch.tensor(next(orders)))
    models = [scaled(3), scaled(-1), scaled(-1)]
    found = shapley_values(bench(), scaled(0), models, permutations=6, generator=torch.Generator())
    assert found.tolist() == pytest.approx([5 / 6, -1 / 6, -1 / 6])


@pytest.mark.parametrize("count", [1, 2, 5])
def test_gains_add_up_to_the_whole(count):
    generator = torch.Generator().manual_seed(1)
    models = [{"weights": torch.randn(6, generator=generator)} for _ in range(count)]
    trusted = bench()
    found = shapley_values(trusted, scaled(0), models, permutations=4, generator=generator, measure="loss")
    whole = {"weights": torch.stack([model["weights"] for model in models]).mean(0)}
    gained = worth(trusted, whole, "loss") - worth(trusted, scaled(0), "loss")
    assert float(found.sum()) == pytest.approx(gained, abs=1e-5)


def test_a_group_is_scored_once():
    trusted = bench()
    shapley_values(trusted, scaled(0), [scaled(1), scaled(2)], permutations=50, generator=torch.Generator())
    assert trusted.forward_samples == 4 * len(trusted)  # nobody, each of the two, both


def test_truncation_stops_when_nothing_more_can_be_gained():
    trusted = bench()
    models = [scaled(1)] * 6
    found = shapley_values(trusted, scaled(-1), models, permutations=1, generator=torch.Generator(), truncate=0.01)
    assert sorted(found.tolist()) == [0.0] * 5 + [1.0]
    assert trusted.forward_samples == 3 * len(trusted)  # nobody, everybody, the first


def test_relevance_by_hand(tmp_path):
    method = find_method("s_fedavg:memory=0.75,news=0.25,permutations=1")
    server = one_server(tmp_path, clients=4, trusted=bench())
    server.begin(1)
    method.start(server)
    assert server.state["relevance"].tolist() == [0.25] * 4
    server.weights = scaled(-1)
    # Alone, client 2 makes everything right: its gain is 1.
    method.merge(server, iter([(2, scaled(1) | {"samples": torch.tensor(3)})]))
    assert server.state["relevance"].tolist() == pytest.approx([0.25, 0.25, 0.75 * 0.25 + 0.25, 0.25])
    assert server.weights["weights"].tolist() == scaled(1)["weights"].tolist()
    assert server.notes["quality"] == [0.0, 0.0, 1.0, 0.0]
    assert server.notes["shapley"] == {"2": 1.0}


def test_who_is_drawn_follows_the_relevance(tmp_path):
    method = find_method("s_fedavg:temperature=0.1")
    server = one_server(tmp_path, clients=4, participation=0.25)
    method.start(server)
    server.state["relevance"] = torch.tensor([0.0, 0.1, 0.2, 0.3]).double()
    wanted = np.exp(np.arange(4)) / np.exp(np.arange(4)).sum()
    drawn = []
    for number in range(1, 1501):
        server.round = number
        drawn += method.choose(server)
    assert np.bincount(drawn) / 1500 == pytest.approx(wanted, abs=0.04)


def test_nobody_is_drawn_twice_and_absent_clients_never(tmp_path):
    method = find_method("s_fedavg")
    server = one_server(tmp_path, clients=6, participation=0.5)
    server.available = (0, 2, 3, 5)
    method.start(server)
    for number in range(1, 30):
        server.round = number
        drawn = method.choose(server)
        assert len(set(drawn)) == len(drawn) == 3
        assert set(drawn) <= {0, 2, 3, 5}


def test_it_refuses_to_run_without_trusted_samples(tmp_path):
    with pytest.raises(UsageError, match=r"add trusted=0\.2"):
        run(tmp_path, method="s_fedavg")


def test_cost(tmp_path):
    row = run(
        tmp_path, method="s_fedavg:permutations=2", trusted=0.2, clients=4, rounds=1, epochs=3, model="linear"
    ).rounds[0]
    model = 4 * (2 * 3 + 3)
    assert (row["forward_samples"], row["backward_samples"]) == (3 * 120, 3 * 120)  # EF + EB
    assert (row["bytes_down"], row["bytes_up"]) == (4 * model, 4 * (model + 8))  # 2M
    # At most R |S| groups of |V| = 12 samples, and the model before; everybody together comes up in every order.
    assert 5 * 12 <= row["server_forward_samples"] <= (2 * 4 - 1 + 1) * 12
    assert row["server_backward_samples"] == 0


def test_it_finds_out_who_has_wrong_labels(tmp_path):
    settings = {"data": toy_data(600), "clients": 6, "participation": 0.5, "rounds": 12, "trusted": 0.5}
    result = run(
        tmp_path, method="s_fedavg:temperature=0.05,measure=loss", noise="uniform:share=0.5,low=1,high=1", **settings
    )
    assert result.summary["detection"]["quality"]["pearson"] > 0.5
