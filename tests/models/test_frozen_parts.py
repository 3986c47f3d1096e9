"""Models of which only a part is trained: what travels, what stays, and that it never moves."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import fedwinnow
from fedwinnow.data.load import load
from fedwinnow.deployment import site_data
from fedwinnow.deployment.agreement import describe_run
from fedwinnow.deployment.real_sites import real_stage, task_data
from fedwinnow.deployment.site import Site
from fedwinnow.deployment.site_data import OwnData
from fedwinnow.errors import DataError, UsageError
from fedwinnow.experiment.prepare import setup_of
from fedwinnow.experiment.settings import Experiment
from fedwinnow.federation.client import scoring_batch
from fedwinnow.federation.host import Host, Task, use_batch_statistics
from fedwinnow.federation.memory import Memory
from fedwinnow.mathematics.payload import FlatModel
from fedwinnow.models.make_model import make_model
from fedwinnow.models.model import Shape

# 3x3 convolution of 4 channels (40), batch normalisation (8, statistics 8 and a count), then layers that are trained:
# 4*8*8 -> 6 (1542), batch normalisation of 6 (12, statistics 12 and a count), 6 -> 10 (70)
MODEL = """
import torch
from torch import nn

def build(sample_shape, classes):
    height, width, channels = sample_shape
    body = nn.Sequential(nn.Conv2d(channels, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    body[1].running_mean += 0.5
    body.requires_grad_(False)
    return nn.Sequential(body, nn.Linear(4 * height * width, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, classes))
"""
TRAINED, STATISTICS = 1542 + 12 + 70, 12
SMALL = {"data": "digits:train=120", "clients": 3, "participation": 1.0, "rounds": 2, "epochs": 1, "batch_size": 16}


def build() -> nn.Sequential:
    known: dict[str, Any] = {}
    exec(MODEL, known)
    module: nn.Sequential = known["build"]((8, 8, 1), 10)
    return module


@pytest.fixture
def own(tmp_path: Path) -> str:
    path = tmp_path / "my_model.py"
    path.write_text(MODEL)
    return f"{path}:build"


def test_what_travels():
    model = FlatModel(build())
    assert model.trainable == TRAINED
    assert len(model.weights) == TRAINED + STATISTICS
    assert len(model.counters) == 1
    assert [slot.name for slot in model.slots][:2] == ["1.weight", "1.bias"]
    assert sorted(model.frozen) == sorted(f"0.{name}" for name in build()[0].state_dict())
    assert scoring_batch(model) == 50  # the frozen convolution counts


def test_without_frozen_parts_everything_travels():
    module = build().requires_grad_(True)
    model = FlatModel(module)
    assert len(model.weights) == TRAINED + STATISTICS + 40 + 8 + 8
    assert (len(model.counters), model.frozen, model.frozen_hash) == (2, {}, "")


def test_frozen_statistics_do_not_move_and_others_do():
    model = FlatModel(build())
    before = {name: value.clone() for name, value in model.frozen.items()}
    model.train()
    assert (model.module[0][1].training, model.module[2].training) == (False, True)
    assert model.module[0][2].training  # only layers that keep statistics are held still
    statistics = model.statistics.clone()
    model.module(torch.randn(8, 1, 8, 8)).sum().backward()
    assert all(torch.equal(value, model.frozen[name]) for name, value in before.items())
    assert not torch.equal(model.statistics, statistics)
    assert model.counters.tolist() == [1]
    assert model.gradient.abs().sum() > 0


def test_which_layers_are_frozen():
    # without parameters of its own, a layer counts as the part around it
    inner = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2, affine=False)).requires_grad_(False)
    assert len(FlatModel(nn.Sequential(inner, nn.Flatten(), nn.Linear(2, 2))).weights) == 6
    beside = nn.Sequential(nn.Linear(2, 2).requires_grad_(False), nn.BatchNorm1d(2, affine=False), nn.Linear(2, 2))
    assert len(FlatModel(beside).weights) == 6 + 4
    # a layer of which one parameter is trained is not frozen
    half = nn.Sequential(nn.Linear(2, 2).requires_grad_(False), nn.BatchNorm1d(2))
    half[1].weight.requires_grad_(False)
    assert len(FlatModel(half).weights) == 2 + 4


class Adapted(nn.Module):
    """A frozen linear layer with a small correction that is trained."""

    def __init__(self, inner: nn.Linear, rank: int) -> None:
        super().__init__()
        self.inner = inner.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, inner.in_features))
        self.up = nn.Parameter(torch.zeros(inner.out_features, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.inner(x) + x @ self.down.t() @ self.up.t()
        return answer


def test_a_low_rank_correction():
    model = FlatModel(nn.Sequential(nn.Flatten(), Adapted(nn.Linear(64, 10), 2)))
    assert [(slot.name, slot.stop) for slot in model.slots] == [("1.down", 128), ("1.up", 148)]
    assert sorted(model.frozen) == ["1.inner.bias", "1.inner.weight"]


def test_frozen_numbers_may_be_of_any_type():
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module[0].requires_grad_(False).half()
    assert len(FlatModel(module).weights) == 6
    module[1].half()
    with pytest.raises(UsageError, match=r"'1\.weight' is not float32"):
        FlatModel(module)


def test_nothing_to_train():
    with pytest.raises(UsageError, match=r"all 2 parameters of the model are frozen.*at least one"):
        FlatModel(nn.Linear(2, 2).requires_grad_(False))


def test_statistics_of_the_batch_are_for_layers_that_are_trained():
    module = build()
    use_batch_statistics(module)
    assert module[0][1].track_running_stats
    assert not module[2].track_running_stats


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "winnow", "fedrn"])
def test_a_run_sends_what_is_trained_and_nothing_else_moves(method, own, tmp_path):
    out = tmp_path / "run"
    result = fedwinnow.run(**SMALL | {"rounds": 3}, method=method, model=own, out=out, noise="constant:rate=0.2")
    state, frozen = load_file(out / "state.safetensors"), load_file(out / "frozen.safetensors")
    assert not [name for name in state if name.startswith("model.0.")]
    whole = {name: value for name, value in (state | frozen).items() if name.startswith("model.")}
    build().load_state_dict({name.removeprefix("model."): value for name, value in whole.items()})  # nothing is missing
    rebuilt = make_model(own, Shape("images", (8, 8, 1), 10), 0)
    assert all(torch.equal(value, frozen[f"model.0.{name}"]) for name, value in rebuilt[0].state_dict().items())
    ledger = json.loads((out / "ledger.json").read_text())["sites"]["client-0"]["weights"]
    assert ledger["bytes"] == ledger["count"] * 4 * (TRAINED + STATISTICS)
    if method == "fedavg":
        (up,) = {row["bytes_up"] for row in result.rounds}
        assert up == 3 * (4 * (TRAINED + STATISTICS) + 8 + 8)  # weights, one counter, how many samples


def test_a_run_that_is_continued_is_the_same(own, tmp_path):
    fedwinnow.run(**SMALL, model=own, out=tmp_path / "whole")
    fedwinnow.run(**SMALL | {"rounds": 1}, model=own, out=tmp_path / "pieces")
    fedwinnow.run(**SMALL, model=own, out=tmp_path / "pieces", resume=True)
    whole, pieces = (load_file(tmp_path / name / "state.safetensors") for name in ("whole", "pieces"))
    assert all(torch.equal(value, pieces[name]) for name, value in whole.items())


WITH_FILE = MODEL.replace("body[1].running_mean += 0.5", "body[1].running_mean += torch.load({path!r})")


def test_another_frozen_part_is_refused(tmp_path):
    weights, path = tmp_path / "mean.pt", tmp_path / "my_model.py"
    torch.save(torch.ones(4), weights)
    path.write_text(WITH_FILE.format(path=str(weights)))
    fedwinnow.run(**SMALL, model=str(path), out=tmp_path / "run")
    fedwinnow.audit(run=tmp_path / "run", out=tmp_path / "audit", judge="final")
    torch.save(torch.zeros(4), weights)
    with pytest.raises(DataError, match="frozen part of the model is not the one that this run was made with"):
        fedwinnow.run(**SMALL | {"rounds": 3}, model=str(path), out=tmp_path / "run", resume=True)
    with pytest.raises(DataError, match="frozen part of the model is not the one"):
        fedwinnow.audit(run=tmp_path / "run", out=tmp_path / "audit 2", judge="final")


def test_a_frozen_part_that_is_another_each_time_is_refused(tmp_path):
    def wavering(sample_shape: tuple[int, ...], classes: int) -> nn.Module:
        module = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, classes))
        module[1].requires_grad_(False).weight += float(np.random.default_rng().random())
        return module

    with pytest.raises(UsageError, match="other values each time the model is built"):
        fedwinnow.run(**SMALL, model=wavering, out=tmp_path / "run")


def test_a_site_with_another_frozen_part_answers_nothing(tmp_path, monkeypatch):
    usual = setup_of
    monkeypatch.setattr(site_data, "setup_of", lambda *known: replace(usual(*known), model=lambda: build()))
    data = load("digits:train=60")
    stage = real_stage(Experiment(rounds=2, epochs=1), task_data(data), {"a": 50, "b": 60})
    setup = replace(usual(stage.experiment, "cpu"), model=lambda: build())
    host = Host(stage.sites, stage.judged, stage.parts, stage.method, setup, Memory(tmp_path))
    task = Task(1, "train", 1, 0, host.model.payload())
    facts = {"kind": "ask", "number": 1, "client": 1, "ask": "train", "round": 1, "exchange": 0, "memory": None}
    run = describe_run(stage, simulated=False)
    said_here: list[str] = []
    site = Site("b", OwnData(data, "cpu"), tmp_path / "site", said_here.append)
    said, sent = site.answer(facts | {"run": run | {"frozen": host.frozen}}, task.payload)
    assert "error" not in said
    assert sent["reply.weights"].shape == (TRAINED + STATISTICS,)
    for other in ({}, {"frozen": ["0" * 64]}):
        site = Site("b", OwnData(data, "cpu"), tmp_path / str(other), said_here.append)
        said, sent = site.answer(facts | {"run": run | other}, task.payload)
        assert (said, sent) == ({"error": "model"}, {})
        assert "frozen part of the model has other values here than at the coordinator" in said_here[-1]


def test_the_trained_model_of_a_run_with_a_frozen_part(own, tmp_path):
    fedwinnow.run(**SMALL, model=own, out=tmp_path / "run")
    trained = fedwinnow.load(tmp_path / "run").model
    frozen = load_file(tmp_path / "run" / "frozen.safetensors")
    found = {name: value for name, value in trained.state_dict().items() if name.endswith("0.0.weight")}
    assert [torch.equal(value, frozen["model.0.0.weight"]) for value in found.values()] == [True]


def test_starting_with_a_frozen_part(own, tmp_path):
    path = Path(own.rpartition(":")[0])
    path.write_text(
        MODEL + "\ndef free(sample_shape, classes):\n    return build(sample_shape, classes).requires_grad_(True)\n"
    )
    fedwinnow.run(**SMALL, model=own, out=tmp_path / "first")
    whole = f"{path}:free"
    for name, model in (("same", own), ("whole", whole)):
        fedwinnow.run(**SMALL | {"rounds": 0}, model=model, start=tmp_path / "first", out=tmp_path / name)
    first, frozen = (load_file(tmp_path / "first" / f"{name}.safetensors") for name in ("state", "frozen"))
    assert torch.equal(load_file(tmp_path / "same" / "state.safetensors")["model.1.weight"], first["model.1.weight"])
    free = load_file(tmp_path / "whole" / "state.safetensors")
    assert torch.equal(free["model.0.0.weight"], frozen["model.0.0.weight"])
    # what was trained cannot become frozen: every site builds the frozen part itself
    fedwinnow.run(**SMALL, model=whole, out=tmp_path / "trained")
    with pytest.raises(DataError, match="is frozen in this model and has another value in that run"):
        fedwinnow.run(**SMALL, model=own, start=tmp_path / "trained", out=tmp_path / "not")
