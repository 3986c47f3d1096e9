"""A site answers what it must, refuses what says something about samples, and writes down what left."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fedwinnow.catalogue import entries
from fedwinnow.data.load import load
from fedwinnow.deployment.agreement import describe_run, hello_of, identity, task_of
from fedwinnow.deployment.error_codes import CODES, FAILED
from fedwinnow.deployment.exposure_limit import Declined
from fedwinnow.deployment.real_sites import real_stage, task_data
from fedwinnow.deployment.site import LOG, Site, prune
from fedwinnow.deployment.site_data import OwnData, SceneShare
from fedwinnow.errors import DataError
from fedwinnow.experiment.prepare import prepare, setup_of
from fedwinnow.experiment.settings import Experiment
from fedwinnow.federation.host import Host, Task
from fedwinnow.federation.memory import Memory
from fedwinnow.federation.method import find_method
from fedwinnow.mathematics.payload import Payload
from fedwinnow.methods.fedavg import FedAvg
from fedwinnow.scene.scene import Scene
from fedwinnow.version import __version__

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
    (line,) = ledger(tmp_path)
    assert line["run"] == identity(facts["run"])
    assert line["sent"]["weights"] == {
        "exposes": "model",
        "receivers": ["server"],
        "shape": list(weights["weights"].shape),
        "bytes": 4 * weights["weights"].numel(),
    }
    assert line["sent"]["samples"]["exposes"] == "client"


@pytest.mark.parametrize("ask", ["judge", "predict", "audit", "score test", "__init__", "merge", "choose", "nonsense"])
def test_questions_about_samples_and_strange_ones_are_refused(real: Any, ask: str) -> None:
    site, facts, weights, said_here = real
    said, sent = site.answer(facts | {"ask": ask}, weights)
    assert (said, sent) == ({"error": "question"}, {})
    assert "asked for" in said_here[-1]


@pytest.mark.parametrize("memory", ["../../x", "000000-1-0.safetensors", "../000001-1-0.safetensors", 7])
def test_a_memory_that_is_none_of_the_client_is_refused(real: Any, memory: Any) -> None:
    site, facts, weights, said_here = real
    said, sent = site.answer(facts | {"memory": memory}, weights)
    assert (said, sent) == ({"error": "question"}, {})
    assert "memory" in said_here[-1]


def test_code_that_the_coordinator_names_is_not_run(real: Any, tmp_path: Path) -> None:
    site, facts, weights, said_here = real
    facts["run"]["experiment"]["method"] = {"kind": "./evil.py"}
    said, _ = site.answer(facts, weights)
    assert said == {"error": "settings"}
    assert "runs no code" in said_here[-1]
    assert not list(tmp_path.glob("*/"))  # nothing was prepared


def test_another_version_is_an_error_that_names_both(real: Any) -> None:
    site, facts, weights, said_here = real
    facts["run"]["fedwinnow"] = "99.1.0"
    said, _ = site.answer(facts, weights)
    assert said == {"error": "version"}
    assert f"the coordinator has fedwinnow 99.1.0, this site {__version__}" in said_here[-1]


def test_a_class_that_nobody_agreed_on_is_named_here_and_once(real: Any) -> None:
    site, facts, _, said_here = real
    task = facts["run"]["task"] | {"class_names": [f"digit {number}" for number in range(9)]}
    said, _ = site.answer(facts["run"] | {"kind": "hello", "task": task}, {})
    assert said == {"site": "b", "error": "classes"}  # a class is a cell of the site's table
    assert "class '0', which is not among the coordinator's: digit 0" in str(site.failure)
    assert not any("which is not among" in line for line in said_here)  # whoever ends with the failure says it


def test_a_site_with_data_and_a_coordinator_with_a_scene_say_what_does_not_suit(real: Any, tmp_path: Path) -> None:
    site, facts, _, _ = real
    said, _ = site.answer(facts["run"] | {"kind": "hello", "task": None}, {})
    assert said["error"] == "scene"
    assert "the coordinator has --scene, this site --data" in str(site.failure)
    Scene.make("digits:train=60", clients=3).save(tmp_path / "scene")
    share = Site("a", SceneShare(tmp_path / "scene", (1, 2), "cpu"), tmp_path / "site", print)
    said, _ = share.answer(facts["run"] | {"kind": "hello"}, {})
    assert said["error"] == "scene"
    assert "the coordinator has --data, this site --scene" in str(share.failure)
    said, _ = share.answer(facts["run"] | {"kind": "hello", "task": None}, {})
    assert said["clients"] == [1, 2]
    assert share.failure is None


def test_classes_in_another_order_are_numbered_as_the_coordinator_does(tmp_path: Path) -> None:
    data = load("digits:train=60")
    task = task_of(data)
    turned = task | {"class_names": task["class_names"][::-1]}
    assert (OwnData(data).labels(turned) == 9 - data.train.labels).all()


def test_what_went_wrong_on_site_is_told_without_a_word_about_samples(real: Any) -> None:
    site, facts, weights, said_here = real
    said, sent = site.answer(facts | {"round": 2}, {"weights": weights["weights"][:3]})
    assert (said, sent) == ({"error": "failed"}, {})
    assert "Traceback" in said_here[-1]


def test_a_verdict_that_cannot_be_written_ends_the_site_with_an_error(real: Any, monkeypatch: Any) -> None:
    site, facts, weights, _ = real

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedwinnow.deployment.site_audit.write_order", full)
    said, _ = site.answer(facts | {"kind": "finish"}, weights)
    assert said == {"error": "failed"}
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
    assert site.answer(facts | {"client": 0}, task.payload)[0] == {"error": "question"}
    assert "site a has the clients 1 to 2" in (tmp_path / "site" / LOG).read_text(encoding="utf-8")


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


# --- what a site says of what went wrong ---------------------------------------------------------------------------

EVIL = "\x1b[2J\x07\u202e" + "x" * 100_000


def ledger(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "ledger.jsonl").read_text(encoding="utf-8").splitlines()]


def test_an_error_is_told_without_paths_and_written_down(real: Any, tmp_path: Path) -> None:
    site, facts, weights, said_here = real
    said, sent = site.answer(facts | {"memory": "000001-7-0.safetensors"}, weights)  # a memory that is not there
    assert (said, sent) == ({"error": "failed"}, {})
    assert str(tmp_path) in said_here[-1]
    assert str(tmp_path) in (tmp_path / LOG).read_text(encoding="utf-8")
    (line,) = ledger(tmp_path)
    assert (line["kind"], line["ask"], line["said"], line["sent"]) == ("ask", "train", said, {})


@pytest.mark.parametrize("kind", ["hello", "ask", "finish"])
def test_no_error_that_leaves_names_a_file_of_the_site(real: Any, kind: str, monkeypatch: Any, tmp_path: Path) -> None:
    site, facts, weights, _ = real

    def broken(*_: Any, **__: Any) -> None:
        raise DataError(f"{tmp_path}/patients.csv: row 7 has 'Smith, John'.")

    for name in ("introduction", "host", "name_of"):
        monkeypatch.setattr(OwnData, name, broken)
    said, _ = site.answer(facts["run"] | {"kind": kind} if kind == "hello" else facts | {"kind": kind}, weights)
    named = {"site": "b"} if kind == "hello" else {}
    assert said == {"error": "failed"} | named
    assert ledger(tmp_path)[-1]["said"] == said


def test_what_cannot_be_written_down_is_not_told_either(real: Any, tmp_path: Path) -> None:
    site, facts, weights, said_here = real
    (tmp_path / "ledger.jsonl").mkdir()
    said, sent = site.answer(facts | {"ask": "judge"}, weights)
    assert (said, sent) == ({"error": "ledger"}, {})
    assert "cannot be written" in said_here[-1]


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": EVIL},
        {"kind": "refused", "reason": EVIL},
        {"ask": EVIL},
        {"memory": EVIL},
        {"client": EVIL},
        {"round": EVIL},
        {"run": {"fedwinnow": EVIL}},
        {"run": {"fedwinnow": __version__, "experiment": {EVIL: 1}}},
        {"run": {"fedwinnow": __version__, "experiment": {"method": EVIL}}},
        {"run": {"fedwinnow": __version__, "experiment": {"views": EVIL}}},
    ],
)
def test_what_the_coordinator_says_is_repeated_without_control_characters(
    real: Any, changes: Facts, tmp_path: Path
) -> None:
    site, facts, weights, said_here = real
    said, _ = site.answer(facts | changes, weights)
    texts = [*said_here, *((tmp_path / name).read_text(encoding="utf-8") for name in ("ledger.jsonl", LOG))]
    assert said_here
    for text in texts:
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert len(text) < 10_000
    assert said.get("error", FAILED) in CODES


def test_a_failure_with_which_join_ends_is_printable(real: Any) -> None:
    site, facts, _, _ = real
    task = facts["run"]["task"] | {"class_names": [EVIL]}
    said, _ = site.answer(facts["run"] | {"kind": "hello", "task": task}, {})
    assert said["error"] == "classes"
    assert "allowed: at most 200 letters" in str(site.failure)
    assert str(site.failure).isprintable()


# --- how much a site lets others learn -----------------------------------------------------------------------------


def hello(method: str, least_count: int = 0) -> Facts:
    data = load("digits:train=60")
    stage = real_stage(
        Experiment(method=method, rounds=2, epochs=1, least_count=least_count), task_data(data), {"a": 50, "b": 60}
    )
    return hello_of(stage, simulated=False)


def bounded(tmp_path: Path, allowed: Any) -> tuple[Site, list[str]]:
    said: list[str] = []
    return Site("b", OwnData(load("digits:train=60"), "cpu"), tmp_path, said.append, allowed), said


@pytest.mark.parametrize(
    ("method", "allowed", "refused"),
    [
        ("fedgr", "client", "'sample_loss' (about single samples)"),
        ("fedgr", "sample", None),
        ("fedgr:gmm_scope=client", "client", None),
        ("winnow", "client", None),
        ("fedavg", "client", None),
        ("fedavg", "model", "'samples' (about the site as a whole)"),
        ("fedgr", "model", "'samples' (about the site as a whole), 'sample_loss' (about single samples)"),
    ],
)
def test_a_method_that_sends_more_than_is_allowed_is_refused_before_anything_is_said(
    method: str, allowed: Any, refused: str | None, tmp_path: Path
) -> None:
    site, told = bounded(tmp_path, allowed)
    said, _ = site.answer(hello(method), {})
    if refused is None:
        assert said == {"site": "b", "samples": 60}
        assert f"  method: {method.partition(':')[0]} (" in told[0]
        assert told[1].startswith("agreed, by the default policy")
        return
    level = "sample" if "sample_loss" in refused else "client"
    assert said == {"site": "b", "error": "refused"}  # and not why
    assert isinstance(site.failure, Declined)
    assert site.failure.exit_code == 2
    assert f"method '{method}' sends {refused}" in str(site.failure)
    assert f"join --allow-exposure {level}" in str(site.failure)


def test_which_methods_of_the_catalogue_send_a_value_per_sample() -> None:
    found = [name for name in entries("methods") if "sample" in find_method(name).exposed().values()]
    assert found == ["fedgr"]
    assert all("client" in find_method(name).exposed().values() for name in entries("methods"))  # `model` refuses all


def test_a_coordinator_that_says_one_method_and_asks_for_another_is_refused(tmp_path: Path) -> None:
    site, _ = bounded(tmp_path, "client")
    assert "error" not in site.answer(hello("fedavg"), {})[0]
    data = load("digits:train=60")
    stage = real_stage(Experiment(method="fedgr", rounds=2, epochs=1), task_data(data), {"a": 50, "b": 60})
    facts = {"kind": "ask", "ask": "train", "round": 1, "exchange": 0, "client": 1, "number": 1, "memory": None}
    said, sent = site.answer(facts | {"run": describe_run(stage, simulated=False)}, {})
    assert (said, sent) == ({"error": "departed"}, {})
    assert site.ready is None  # nothing was prepared, so nothing was computed
    site, _ = bounded(tmp_path / "started again", "client")
    said, sent = site.answer(facts | {"run": describe_run(stage, simulated=False)}, {})
    assert (said, sent) == ({"error": "refused"}, {})
    assert isinstance(site.failure, Declined)
    assert site.ready is None


def test_what_a_coordinator_says_of_exposure_is_not_believed(tmp_path: Path) -> None:
    site, _ = bounded(tmp_path, "client")
    claimed = {"exposes": {"sample_loss": "model"}, "exposed": {"sample_loss": "model"}}
    assert site.answer(hello("fedgr") | claimed, {})[0]["error"] == "refused"
    lied = hello("fedgr")
    lied["experiment"]["method"] |= claimed
    assert "error" in site.answer(lied, {})[0]


def test_a_key_of_higher_exposure_does_not_leave_whatever_was_agreed(real: Any, monkeypatch: Any) -> None:
    site, facts, weights, _ = real
    honest = FedAvg.train

    def train(self: FedAvg, client: Any, got: Payload) -> Payload:
        monkeypatch.setattr(FedAvg, "exposed", lambda self: {**self.exposes, "losses": "sample"})
        return honest(self, client, got) | {"losses": torch.zeros(60)}

    monkeypatch.setattr(FedAvg, "train", train)
    said, sent = site.answer(facts, weights)
    assert sent == {}
    assert said == {"error": "refused"}
    assert isinstance(site.failure, Declined)
    assert "method 'fedavg' sends 'losses' (about single samples)" in str(site.failure)


def test_a_coordinator_that_does_not_say_its_method_is_refused(tmp_path: Path) -> None:
    site, _ = bounded(tmp_path, "client")
    spoken = hello("fedavg")
    for missing in ("experiment", "fedwinnow"):
        said, _ = site.answer({key: value for key, value in spoken.items() if key != missing}, {})
        assert "samples" not in said
        assert site.failure is not None


def test_a_simulation_has_no_bound_because_its_samples_are_the_coordinators_too(tmp_path: Path) -> None:
    Scene.make("digits:train=60", clients=2).save(tmp_path / "scene")
    site = Site("a", SceneShare(tmp_path / "scene", (0, 1), "cpu"), tmp_path / "site", print)
    assert "error" not in site.answer(hello("fedgr") | {"task": None}, {})[0]


def test_a_site_whose_data_has_changed_takes_no_further_part(real: Any, tmp_path: Path) -> None:
    site, facts, weights, said = real
    assert "error" not in site.answer(facts, weights)[0]
    data = load("digits:train=60")
    data.train.features.array.setflags(write=True)
    data.train.features.array[0] += 1
    restarted = Site("b", OwnData(data, "cpu"), tmp_path, said.append)
    later = facts | {"round": 2}
    told, sent = restarted.answer(later, weights)
    assert (told, sent) == ({"error": "changed"}, {})
    assert "the data of this site has changed since the run began" in said[-1]
    restarted.answer(facts["run"] | {"kind": "hello"}, {})
    assert "error" not in restarted.answer(facts, weights)[0]  # the run begins anew
    assert "error" not in restarted.answer(later, weights)[0]
    unchanged = Site("b", OwnData(load("digits:train=60"), "cpu"), tmp_path, said.append)
    assert "error" in unchanged.answer(later, weights)[0]


@pytest.mark.parametrize(("own", "asked", "few"), [(0, 0, False), (60, 60, False), (61, 0, True), (0, 61, True)])
def test_a_site_below_the_larger_least_count_says_that_and_no_number(
    tmp_path: Path, own: int, asked: int, few: bool
) -> None:
    data, told = load("digits:train=60"), list[str]()
    site = Site("b", OwnData(data, "cpu", own), tmp_path, told.append)
    said, _ = site.answer(hello("fedavg", asked), {})
    assert said == {"site": "b", **({"few": True} if few else {"samples": 60})}
    assert any("fewer samples than the least count" in line for line in told) == few
    assert ledger(tmp_path)[0]["said"] == said


@pytest.mark.parametrize("asked", [-3, "many", None, 2.5])
def test_a_coordinator_cannot_lower_a_sites_own_least_count(real: Any, asked: Any) -> None:
    site, facts, weights, _ = real
    site.holding.least_count = 61
    spoken = hello("fedavg")
    spoken["experiment"]["least_count"] = asked
    said, _ = site.answer(spoken, {})
    assert "samples" not in said
    assert site.answer(hello("fedavg"), {})[0] == {"site": "b", "few": True}
    said, sent = site.answer(facts, weights)  # it asks all the same, with a least count of 0
    assert (said, sent) == ({"client": 1, "absent": True}, {})


def test_what_a_site_allows_of_single_samples_is_not_undone_by_its_least_count(tmp_path: Path) -> None:
    for allowed, code in (("client", "refused"), ("sample", None)):
        site = Site("b", OwnData(load("digits:train=60"), "cpu", 5), tmp_path / allowed, print, allowed)  # type: ignore[arg-type]
        assert site.answer(hello("fedgr", 5), {})[0].get("error") == code


def test_how_much_was_computed_does_not_tell_how_much_was_selected(real: Any) -> None:
    site, facts, weights, _ = real
    facts["run"]["experiment"]["method"] = {"kind": "fedrn"}
    more = weights | {"input_seed": torch.tensor([1])}
    exact, _ = site.answer(facts, more)
    site.holding.least_count, site.ready, site.held = 5, None, None
    said, _ = site.answer(facts, more)
    assert exact["forward_samples"] % 60 != 0
    for name in ("forward_samples", "backward_samples"):
        assert said[name] % 60 == 0
        assert 0 <= said[name] - exact[name] < 60
