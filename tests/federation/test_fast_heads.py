"""Heads that are trained by hand: the same numbers up to rounding, only where asked for, and for every objective."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from by_hand import one_client
from fedwinnow import catalogue
from fedwinnow.experiment import play
from fedwinnow.experiment.prepare import setup_of
from fedwinnow.experiment.settings import Experiment
from fedwinnow.federation.client import Client
from fedwinnow.federation.method import Method, find_method
from fedwinnow.mathematics.losses import CrossEntropy
from fedwinnow.mathematics.payload import FlatModel, Payload
from fedwinnow.models.make_model import make_model
from fedwinnow.models.model import Shape
from stages import equal, run

ROWS = np.random.RandomState(0).normal(size=(23, 6))
LABELS = (np.arange(23) % 3).tolist()
OWN = ["coteaching", "feddiv", "fedgr", "selfie"]
METHODS = ["fedavg", "gce", "sce", "mixup", "logit_adjustment", "fedprox", "fedprox:prox=norm", "cdr"]


def site(method: str, *, fast: bool, model: str = "mlp:hidden=8", optimizer: str = "", **training: Any) -> Client:
    client = one_client(ROWS, LABELS, classes=3, **({"epochs": 3, "batch_size": 5, "momentum": 0.9} | training))
    client.model = FlatModel(make_model(model, Shape("rows", (6,), 3), seed=4), fast_heads=fast)
    if optimizer:
        client.optimizer = catalogue.make("optimizers", optimizer)
    find_method(method).train(client, client.model.payload())
    return client


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("model", ["linear", "mlp:hidden=8"])
def test_the_same_model_up_to_rounding(method, model, monkeypatch):
    usual = site(method, fast=False, model=model)
    monkeypatch.setattr(Method, "objective", None)  # by hand, nobody calls it
    by_hand = site(method, fast=True, model=model)
    start = make_model(model, Shape("rows", (6,), 3), seed=4)
    assert not torch.allclose(by_hand.model.weights, FlatModel(start).weights, atol=1e-3)
    assert torch.allclose(by_hand.model.weights, usual.model.weights, atol=2e-6)
    assert by_hand.forward_samples == usual.forward_samples == 69
    assert by_hand.backward_samples == usual.backward_samples == 69


@pytest.mark.parametrize(
    "training",
    [
        {"clip": 0.1},
        {"optimizer": "sgd:lr=0.1,momentum=0.9,weight_decay=0.1"},
        {"optimizer": "adam:lr=0.01"},
        {"batch_size": 1, "momentum": 0.0},
        {"batch_size": 22},  # the last batch has one sample
        {"batch_size": 100, "momentum": 0.0},
        {"epochs": 0},
        {"drop_last": True},
    ],
)
def test_with_other_ways_to_train(training):
    usual, by_hand = (site("fedavg", fast=fast, **training) for fast in (False, True))
    assert torch.allclose(by_hand.model.weights, usual.model.weights, atol=2e-6)


def test_winnow():
    found = {}
    for fast in (False, True):
        client = one_client(ROWS, LABELS, classes=3, batch_size=5, momentum=0.9)
        client.model = FlatModel(make_model("linear", Shape("rows", (6,), 3), seed=4), fast_heads=fast)
        got = client.model.payload()
        find_method("winnow").learn(client, got, torch.ones(23, dtype=torch.bool), client.given)
        found[fast] = client.model.weights.clone()
    assert torch.allclose(found[True], found[False], atol=2e-6)
    assert not torch.allclose(found[True], got["weights"], atol=1e-3)


@pytest.fixture
def fast_heads(monkeypatch):
    """Runs as if they had an encoder, from now on."""
    return lambda: monkeypatch.setattr(play, "setup_of", lambda *known: replace(setup_of(*known), fast_heads=True))


def state(folder: Path, **settings: Any) -> dict[str, Tensor]:
    return load_file(run(folder, model="linear", **settings).folder / "state.safetensors")


@pytest.mark.parametrize("method", OWN)
def test_objectives_that_are_their_own_are_left_alone(method, tmp_path, fast_heads):
    usual = state(tmp_path / "usual", method=method)
    fast_heads()
    assert equal(state(tmp_path / "fast", method=method), usual)


def test_a_whole_run_is_another_one_by_rounding_only(tmp_path, fast_heads):
    usual = state(tmp_path / "usual")
    fast_heads()
    fast = state(tmp_path / "fast")
    assert not equal(fast, usual)
    assert all(torch.allclose(fast[key], usual[key], atol=1e-5) for key in usual)
    assert equal(fast, state(tmp_path / "again"))


@dataclass(frozen=True)
class Opposite(Method):
    """A user's method that changes the loss alone."""

    name: ClassVar[str] = "opposite"

    def objective(self, client: Client, rows: Tensor, x: Tensor, y: Tensor, got: Payload) -> Tensor:
        return -super().objective(client, rows, x, y, got)


def test_a_method_that_changes_the_objective_alone_is_not_trained_by_that_of_its_base():
    found = []
    for fast in (False, True):
        client = one_client(ROWS, LABELS, classes=3)
        client.model = FlatModel(client.model.module, fast_heads=fast)
        client.model.weights.zero_()
        Opposite().train(client, client.model.payload())
        found.append(client.model.weights.clone())
    assert torch.equal(*found)
    assert Opposite().by_hand(client, {}) is None
    assert find_method("fedavg").by_hand(client, {}).criterion == CrossEntropy()


def test_half_precision_is_left_to_torch(monkeypatch):
    monkeypatch.setattr(Client, "half_precision", True)
    called = []
    usual = Method.objective
    monkeypatch.setattr(Method, "objective", lambda *given: called.append(1) or usual(*given))
    site("fedavg", fast=True)
    assert called


def test_different_models_in_turn(tmp_path, fast_heads):
    settings = {"method": "rhfl:pre_train=1", "public": 0.3, "rounds": 2}
    usual = run(tmp_path / "usual", model="linear+mlp:hidden=4", **settings)
    fast_heads()
    fast = run(tmp_path / "fast", model="linear+mlp:hidden=4", **settings)
    for first, second in zip(*(sorted((one.folder / "clients").iterdir()) for one in (usual, fast)), strict=True):
        before, after = load_file(first), load_file(second)
        assert before.keys() == after.keys()
        assert all(torch.allclose(before[key].double(), after[key].double(), atol=1e-4) for key in before)


def test_no_run_has_fast_heads_without_an_encoder():
    assert not setup_of(Experiment(model="linear"), "cpu").fast_heads
