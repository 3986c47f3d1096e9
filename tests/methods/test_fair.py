"""FAIR: quality, expectation, choice and weights by hand, and the shared tester."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from by_hand import identity, one_client, one_server
from fedwinnow.errors import UsageError
from fedwinnow.federation.method import find_method
from fedwinnow.federation.server_samples import ServerSamples
from fedwinnow.steps.contributions import learned_shares, loss_drops
from fedwinnow.testing import MethodTester, toy_data
from stages import run


def bench(**training: Any) -> ServerSamples:
    """Two trusted samples, with logits (1, 0) and (0, 1) under the identity, which is right about both."""
    return ServerSamples(**vars(one_client([[1.0, 0.0], [0.0, 1.0]], [0, 1], **training)), purpose="trusted")


def scaled(value: float, samples: int = 1) -> dict[str, torch.Tensor]:
    return {"weights": identity()["weights"] * value, "samples": torch.tensor(samples)}


def loss(scale: float) -> float:
    return float(np.log1p(np.exp(-scale)))


class TestFair(MethodTester):
    method: ClassVar[str] = "fair"
    settings: ClassVar[dict[str, Any]] = {"trusted": 0.2}


class TestLocalQuality(MethodTester):
    method: ClassVar[str] = "fair:quality=local,explore=0.5"


class TestLearnedWeights(MethodTester):
    method: ClassVar[str] = "fair:weigh=learned,steps=3"
    settings: ClassVar[dict[str, Any]] = {"trusted": 10}


@pytest.fixture
def server(tmp_path):
    made = one_server(tmp_path, clients=4, trusted=bench())
    made.begin(1)
    made.weights = {"weights": identity()["weights"]}
    return made


def test_quality_is_how_much_the_loss_fell():
    found = loss_drops(bench(), scaled(1), [scaled(3), scaled(-1)])
    assert found.tolist() == pytest.approx([loss(1) - loss(3), loss(1) - loss(-1)], abs=1e-6)


def test_who_did_harm_is_left_out_and_the_others_count_by_samples_times_quality(server):
    method = find_method("fair")
    method.start(server)
    method.merge(server, iter([(0, scaled(3, 10)), (1, scaled(-1, 99)), (3, scaled(2, 30))]))
    first, third = 10 * (loss(1) - loss(3)), 30 * (loss(1) - loss(2))
    expected = (3 * first + 2 * third) / (first + third)
    assert server.weights["weights"][0].item() == pytest.approx(expected, abs=1e-5)
    drops = [loss(1) - loss(3), loss(1) - loss(-1), loss(1) - loss(2)]
    known = server.state["expected"]
    assert known[[0, 1, 3]].tolist() == pytest.approx(drops, abs=1e-6)
    assert torch.isnan(known[2])
    low, high = min(drops), max(drops)
    shown = [(value - low) / (high - low) for value in (drops[0], drops[1], np.mean(drops), drops[2])]
    assert server.notes["quality"] == pytest.approx(shown, abs=1e-5)


def test_where_everybody_did_harm_the_best_one_counts_alone(server):
    method = find_method("fair")
    method.start(server)
    method.merge(server, iter([(0, scaled(-3, 10)), (1, scaled(0.5, 1)), (2, scaled(-1, 30))]))
    assert server.weights["weights"][0].item() == 0.5


def test_where_nothing_changed_the_model_stays(server):
    method = find_method("fair")
    method.start(server)
    method.merge(server, iter([(0, scaled(1, 10)), (1, scaled(1, 30))]))
    assert server.weights["weights"].tolist() == identity()["weights"].tolist()
    assert server.notes["quality"] == [1.0] * 4


def test_weights_by_samples_alone(server):
    method = find_method("fair:weigh=samples")
    method.start(server)
    method.merge(server, iter([(0, scaled(3, 10)), (1, scaled(-1, 30))]))
    assert server.weights["weights"][0].item() == pytest.approx(0.0, abs=1e-6)


def test_the_expectation_forgets(server):
    method = find_method("fair:forgetting=0.8")
    method.start(server)
    server.state["expected"][0] = 1.0
    method.merge(server, iter([(0, scaled(3))]))
    assert float(server.state["expected"][0]) == pytest.approx(0.8 + 0.2 * (loss(1) - loss(3)), abs=1e-6)


def test_everybody_is_visited_before_the_best_are_chosen(server):
    method = find_method("fair:explore=0")
    method.start(server)
    seen = []
    for number in (1, 2):
        server.begin(number)
        seen += method.choose(server)
        assert method.question(server) == ("visit", "train")
    assert sorted(seen) == [0, 1, 2, 3]
    server.begin(3)
    server.state["expected"] = torch.tensor([0.1, 0.4, torch.nan, -0.2]).double()  # client 2: the mean, 0.1
    assert method.choose(server) == [0, 1]
    assert method.question(server) == ("select", "train")


def test_curiosity_gives_places_to_others(server):
    method = find_method("fair:explore=1,passes=0")
    method.start(server)
    server.state["expected"] = torch.tensor([0.0, 1.0, 2.0, 3.0]).double()
    chosen = set()
    for number in range(1, 20):
        server.begin(number)
        members = method.choose(server)
        assert len(set(members)) == 2
        chosen |= set(members)
    assert chosen == {0, 1, 2, 3}


def test_shares_are_learned_on_the_trusted_samples():
    models = [scaled(3)["weights"], scaled(-1)["weights"]]
    shares = learned_shares(bench(batch_size=2), models, [1.0, 3.0], steps=1, rate=0.1)
    # Adam's first step moves every logit by its rate, up the slope: the good model's up, the bad one's down.
    logits = np.log([0.25, 0.75]) + np.array([0.1, -0.1])
    assert shares.tolist() == pytest.approx(np.exp(logits) / np.exp(logits).sum(), abs=1e-5)
    longer = learned_shares(bench(batch_size=2), models, [1.0, 3.0], steps=100, rate=0.1)
    assert longer[0] > 0.95


def test_the_mixed_model_is_loaded_before_every_step():
    trusted = bench(batch_size=2)
    shares = learned_shares(trusted, [scaled(3)["weights"], scaled(-1)["weights"]], [1.0, 1.0], steps=2, rate=0.1)
    assert trusted.model.weights[0].item() == pytest.approx(float(3 * shares[0] - shares[1]), abs=1e-5)
    assert (trusted.forward_samples, trusted.backward_samples) == (4, 4)


def test_a_client_may_report_its_own_drop():
    client = one_client([[1.0, 0.0], [0.0, 1.0]], [0, 1], lr=0.5)
    reply = find_method("fair:quality=local").train(client, identity())
    # One step: the slope of each diagonal entry is -(1 - p) / 2, of the others the opposite; p = sigmoid(1).
    moved = 0.5 * (1 - 1 / (1 + np.exp(-1))) / 2
    assert float(reply["drop"]) == pytest.approx(loss(1) - loss(1 + 2 * moved), abs=1e-5)


def test_trusted_samples_are_needed_unless_nothing_looks_at_them(tmp_path):
    for method in ("fair", "fair:quality=local,weigh=learned"):
        with pytest.raises(UsageError, match=r"add trusted=0\.2"):
            run(tmp_path, method=method)
    with pytest.raises(UsageError, match="aggregate=median was given"):
        find_method("fair:aggregate=median")


def test_cost(tmp_path):
    row = run(tmp_path, method="fair", trusted=0.2, clients=4, rounds=1, epochs=3, model="linear").rounds[0]
    model = 4 * (2 * 3 + 3)
    assert (row["forward_samples"], row["backward_samples"]) == (3 * 120, 3 * 120)  # E(F + B)
    assert (row["bytes_down"], row["bytes_up"]) == (4 * model, 4 * (model + 8))  # 2M
    assert row["server_forward_samples"] == (4 + 1) * 12  # |S| |V|, and the model before


def test_it_finds_out_who_has_wrong_labels(tmp_path):
    settings = {"data": toy_data(600), "clients": 6, "participation": 0.5, "rounds": 10, "trusted": 0.5}
    result = run(tmp_path, method="fair", noise="uniform:share=0.5,low=1,high=1", **settings)
    assert result.summary["detection"]["quality"]["pearson"] > 0.5
    assert result.summary["last"]["accuracy"] > 0.8
