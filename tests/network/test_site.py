"""A site answers what it must, refuses what says something about samples, and writes down what left."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fedwinnow.data.load import load
from fedwinnow.experiment.prepare import prepare, setup_of
from fedwinnow.experiment.settings import Experiment
from fedwinnow.federation.host import Host, Task
from fedwinnow.federation.memory import Memory
from fedwinnow.network.agreement import describe_run, identity, task_of
from fedwinnow.network.holdings import OwnData, SceneShare
from fedwinnow.network.real_sites import real_stage, task_data
from fedwinnow.network.site import Site, prune
from fedwinnow.scene.scene import Scene

Facts = dict[str, Any]


@pytest.fixture
def real(tmp_path: Path) -> tuple[Site, Facts, dict[str, torch.Tensor], list[str]]:
    """A site with its own data that is client 1 of 2, a question to it, and what it says to its operator."""
    data = load("digits:train=60")
    stage = real_stage(Experiment(rounds=2, epochs=1), task_data(data), {"a": 50, "b": 60})
    said: list[str] = []
    site = Site("b", OwnData(data, "cpu"), tmp_path, said.append)
    facts = {
        "kind": "ask",
        "run": describe_run(stage, simulated=False),
        "number": 1,
        "client": 1,
        "ask": "train",
        "round": 1,
        "exchange": 0,
        "memory": None,
    }
    host = Host(
        stage.sites, stage.judged, stage.parts, stage.method, setup_of(stage.experiment, "cpu"), Memory(tmp_path)
    )
    return site, facts, host.model.payload(), said


def test_a_trained_model_leaves_and_is_written_down(real: Any, tmp_path: Path) -> None:
    site, facts, weights, _ = real
    said, sent = site.answer(facts, weights)
    assert "error" not in said
    assert set(sent) == {"reply.weights", "reply.counters", "reply.samples"} & set(sent)
    assert int(sent["reply.samples"]) == 60
    assert not torch.equal(sent["reply.weights"], weights["weights"])
    (line,) = [
        json.loads(text) for text in (tmp_path / identity(facts["run"]) / "ledger.jsonl").read_text().splitlines()
    ]
    assert line["sent"]["weights"] == {
        "exposes": "model",
        "receivers": ["server"],
        "shape": list(weights["weights"].shape),
        "bytes": 4 * weights["weights"].numel(),
    }
    assert line["sent"]["samples"]["exposes"] == "client"


@pytest.mark.parametrize("ask", ["judge", "predict", "audit", "score test", "__init__", "merge", "choose", "nonsense"])
def test_questions_about_samples_and_strange_ones_are_refused(real: Any, ask: str) -> None:
    site, facts, weights, _ = real
    said, sent = site.answer(facts | {"ask": ask}, weights)
    assert sent == {}
    assert "asked for" in said["error"]


@pytest.mark.parametrize("memory", ["../../x", "000000-1-0.safetensors", 7])
def test_a_memory_that_is_none_of_the_client_is_refused(real: Any, memory: Any) -> None:
    site, facts, weights, _ = real
    said, sent = site.answer(facts | {"memory": memory}, weights)
    assert sent == {}
    assert "memory" in said["error"]


def test_code_that_the_coordinator_names_is_not_run(real: Any, tmp_path: Path) -> None:
    site, facts, weights, _ = real
    facts["run"]["experiment"]["method"] = {"kind": "./evil.py"}
    said, _ = site.answer(facts, weights)
    assert "runs no code" in said["error"]


def test_another_version_is_an_error_that_names_both(real: Any) -> None:
    site, facts, weights, _ = real
    facts["run"]["fedwinnow"] = "99.1.0"
    said, _ = site.answer(facts, weights)
    assert "99.1.0" in said["error"]


def test_a_class_that_nobody_agreed_on_is_named_on_both_sides_and_once(real: Any) -> None:
    site, facts, _, said_here = real
    task = facts["run"]["task"] | {"class_names": [f"digit {number}" for number in range(9)]}
    said, _ = site.answer({"kind": "hello", "task": task}, {})
    assert "class '" in said["error"]
    assert str(site.failure) == said["error"]
    assert said_here == []  # whoever ends with the failure says it


def test_a_site_with_data_and_a_coordinator_with_a_scene_say_what_does_not_suit(real: Any, tmp_path: Path) -> None:
    site, facts, _, _ = real
    said, _ = site.answer({"kind": "hello", "task": None}, {})
    assert "the coordinator has --scene, this site --data" in said["error"]
    Scene.make("digits:train=60", clients=3).save(tmp_path / "scene")
    share = Site("a", SceneShare(tmp_path / "scene", (1, 2), "cpu"), tmp_path / "site", print)
    said, _ = share.answer({"kind": "hello", "task": facts["run"]["task"]}, {})
    assert "the coordinator has --data, this site --scene" in said["error"]
    said, _ = share.answer({"kind": "hello", "task": None}, {})
    assert said["clients"] == [1, 2]
    assert share.failure is None


def test_classes_in_another_order_are_numbered_as_the_coordinator_does(tmp_path: Path) -> None:
    data = load("digits:train=60")
    task = task_of(data)
    turned = task | {"class_names": task["class_names"][::-1]}
    assert (OwnData(data).labels(turned) == 9 - data.train.labels).all()


def test_what_went_wrong_on_site_is_told_without_a_word_about_samples(real: Any) -> None:
    site, facts, weights, said_here = real
    said, sent = site.answer(facts, {"weights": weights["weights"][:3]})
    assert sent == {}
    assert ":" not in said["error"]
    assert "Traceback" in said_here[-1]


def test_a_verdict_that_cannot_be_written_ends_the_site_with_an_error(real: Any, monkeypatch: Any) -> None:
    site, facts, weights, _ = real

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(OwnData, "finish", full)
    said, _ = site.answer(facts | {"kind": "finish"}, weights)
    assert said["error"].startswith("OSError")
    assert "No space left" in str(site.failure)


def test_a_scene_answers_as_the_serial_host_does(tmp_path: Path) -> None:
    Scene.make("digits:train=60", clients=3, noise="constant:rate=0.3").save(tmp_path / "scene")
    stage = prepare(Experiment(scene=tmp_path / "scene", method="feddiv", rounds=2, epochs=1))
    memory = Memory(tmp_path / "serial")
    host = Host(stage.sites, stage.judged, stage.parts, stage.method, setup_of(stage.experiment, "cpu"), memory)
    site = Site("a", SceneShare(tmp_path / "scene", (1, 2), "cpu"), tmp_path / "site", print)
    question = stage.method.exchanges
    assert question is not None
    task = Task(2, "predict", 1, 0, host.model.payload())
    facts = {"kind": "ask", "run": describe_run(stage, simulated=True), **dataclasses.asdict(task)}
    del facts["payload"]
    _, sent = site.answer(facts, task.payload)
    for key, value in host.answer(task).reply.items():
        assert torch.equal(sent[f"reply.{key}"], value)
    said, _ = site.answer(facts | {"client": 0}, task.payload)
    assert "the clients 1 to 2" in said["error"]


def test_a_site_keeps_this_round_and_the_last_before_it(tmp_path: Path) -> None:
    names = [
        f"000003-{round_number}-{exchange}.safetensors"
        for round_number, exchange in [(1, 0), (2, 1), (9, 0), (10, 0), (10, 1)]
    ]
    for name in [*names, "000004-1-0.safetensors"]:
        (tmp_path / name).touch()
    prune(tmp_path, Task(3, "train", 10, 1, {}))
    assert {path.name for path in tmp_path.iterdir()} == {*names[2:], "000004-1-0.safetensors"}


def test_a_site_that_is_refused_says_why_and_waits(real: Any) -> None:
    site, _, _, told = real
    said, sent = site.answer({"kind": "refused", "reason": "it has 0 samples"}, {})
    assert told == ["the coordinator cannot use this site: it has 0 samples"]
    assert (said, sent) == ({"site": "b"}, {})
    assert not site.finished
    assert site.failure is None


@pytest.mark.parametrize(("own", "asked", "few"), [(0, 0, False), (60, 60, False), (61, 0, True), (0, 61, True)])
def test_a_site_below_the_larger_least_count_says_that_and_no_number(
    tmp_path: Path, own: int, asked: int, few: bool
) -> None:
    data, told = load("digits:train=60"), list[str]()
    site = Site("b", OwnData(data, "cpu", own), tmp_path, told.append)
    said, _ = site.answer({"kind": "hello", "task": task_of(data), "least_count": asked}, {})
    assert said == {"site": "b", "few": True} if few else {"site": "b", "samples": 60}
    assert bool(told) == few
    assert ("60" in (tmp_path / "ledger.jsonl").read_text()) == (not few)


@pytest.mark.parametrize("asked", [-3, "many", None, True, 2.5])
def test_a_coordinator_cannot_lower_a_sites_own_least_count(real: Any, asked: Any) -> None:
    site, facts, weights, _ = real
    site.holding.least_count = 61
    said, _ = site.answer({"kind": "hello", "task": facts["run"]["task"], "least_count": asked}, {})
    assert said == {"site": "b", "few": True}
    said, sent = site.answer(facts, weights)  # it asks all the same, with a least count of 0
    assert (said, sent) == ({"client": 1, "absent": True}, {})


def test_a_value_per_sample_does_not_leave_a_site_with_a_least_count(real: Any) -> None:
    site, facts, weights, _ = real
    facts["run"]["experiment"]["method"] = {"kind": "fedgr"}
    site.holding.least_count = 2
    said, sent = site.answer(facts, weights)
    assert sent == {}
    assert "'sample_loss', a value for every single sample" in said["error"]


def test_how_much_was_computed_does_not_tell_how_much_was_selected(real: Any) -> None:
    site, facts, weights, _ = real
    facts["run"]["experiment"]["method"] = {"kind": "fedrn"}
    more = weights | {"input_seed": torch.tensor([1])}
    exact, _ = site.answer(facts, more)
    site.holding.least_count, site.ready = 5, None
    said, _ = site.answer(facts, more)
    assert exact["forward_samples"] % 60 != 0
    for name in ("forward_samples", "backward_samples"):
        assert said[name] % 60 == 0
        assert 0 <= said[name] - exact[name] < 60
