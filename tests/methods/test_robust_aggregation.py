"""FedAvg under other rules, the rules inside other methods, and methods that do not take one."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from fedwinnow import catalogue
from fedwinnow.errors import UsageError
from fedwinnow.federation.method import find_method
from fedwinnow.testing import MethodTester
from stages import equal, played, run, weights

RULES = sorted(set(catalogue.entries("aggregators")) - {"mean"})
NEEDED = {"trusted_data": {"trusted": 0.2}, "public_data": {"public": 0.2}}


class TestMedian(MethodTester):
    method: ClassVar[str] = "median"


class TestMultiKrum(MethodTester):
    method: ClassVar[str] = "multi_krum"


class TestNormClipping(MethodTester):
    method: ClassVar[str] = "norm_clipping"


@pytest.mark.parametrize("rule", RULES)
def test_a_method_of_the_rules_name_is_fedavg_with_that_rule(tmp_path, rule):
    by_name = weights(tmp_path / "a", method=rule, clients=5)
    assert equal(by_name, weights(tmp_path / "b", method=f"fedavg:aggregate={rule}", clients=5))
    assert not equal(by_name, weights(tmp_path / "c", method="fedavg", clients=5))


def needed_by(method):
    return {key: value for need in method.needs for key, value in NEEDED.get(need, {}).items()}


@pytest.mark.parametrize("name", sorted(set(catalogue.entries("methods")) - {"centralised"}))
def test_every_method_uses_the_rule_or_refuses_it(tmp_path, name):
    """None takes a rule and then averages all the same."""
    if find_method(name).own_aggregation:
        with pytest.raises(UsageError, match=r"aggregate=median was given.*allowed: mean"):
            find_method(f"{name}:aggregate=median")
        return
    settings = {"rounds": 3, "clients": 5, "noise": "constant:rate=0.4", **needed_by(find_method(name))}
    for rule in ("mean", "median"):
        run(tmp_path / rule, method=f"{name}:aggregate={rule}", **settings)
    first, second = (load_file(tmp_path / rule / "state.safetensors") for rule in ("mean", "median"))
    assert any(not torch.equal(first[key], second[key]) for key in first if key.startswith("model."))


def test_options_of_a_rule_reach_it():
    assert find_method("feddiv:aggregate=trimmed_mean:share=0.3").aggregator.share == 0.3
    assert find_method('fedprox:mu=0.1,aggregate="multi_krum:faulty=0.1,keep=2"').aggregator.keep == 2
    with pytest.raises(UsageError, match="geometric_median"):
        find_method("fedavg:aggregate=geometric")


class Normalised(nn.Module):
    """A model with running statistics and counters."""

    def __init__(self, sample_shape, classes):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(sample_shape[0], 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, classes))

    def forward(self, x):
        return self.layers(x)


@pytest.mark.parametrize("rule", RULES)
def test_running_statistics_and_counters_come_along(tmp_path, rule):
    server = played(tmp_path, method=rule, model=Normalised, rounds=3).server
    # 120 samples on 4 clients, batches of 8: four steps a round, and the counter goes on from where it was.
    assert server.weights["counters"].tolist() == [12]
    named = server.model.named(server.weights)
    assert bool((named["layers.1.running_var"] > 0).all())
    assert bool(torch.isfinite(server.weights["weights"]).all())


def test_one_client_is_its_own_aggregate(tmp_path):
    lonely = {"clients": 1, "rounds": 2}
    usual = weights(tmp_path / "mean", **lonely)
    for rule in RULES:
        assert equal(usual, weights(tmp_path / rule, method=rule, **lonely)), rule
