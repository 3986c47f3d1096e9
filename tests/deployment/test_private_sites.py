"""A real site with --privacy: its noise is nobody's to repeat, and it counts what it spends whatever it is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("dp_accounting", reason="the extra 'privacy' is not installed: pip install '.[privacy]'")

from fedwinnow.data.load import load
from fedwinnow.deployment.agreement import describe_run, hello_of, identity
from fedwinnow.deployment.ledger_chain import SiteLedger, read_chain
from fedwinnow.deployment.real_sites import real_stage, task_data
from fedwinnow.deployment.site import Site
from fedwinnow.deployment.site_data import OwnData
from fedwinnow.errors import RunError
from fedwinnow.experiment.prepare import setup_of
from fedwinnow.experiment.settings import Experiment
from fedwinnow.federation.host import Host
from fedwinnow.federation.memory import Memory
from fedwinnow.federation.method import Method

Facts = dict[str, Any]


class Place:
    """A site with 60 samples, and the questions of a coordinator."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder, data = folder, load("digits:train=60")
        usual = {"rounds": 2, "epochs": 1, "participation": 1.0, "model": "linear", "privacy": "sample:epsilon=3"}
        self.stage = real_stage(Experiment(**(usual | settings)), task_data(data), {"a": 50, "b": 60})
        self.said: list[str] = []
        self.site = Site("b", OwnData(data, "cpu"), folder, self.said.append)
        self.run = describe_run(self.stage, simulated=False)
        parts = (self.stage.sites, self.stage.judged, self.stage.parts, self.stage.method)
        self.weights = Host(*parts, setup_of(self.stage.experiment, "cpu"), Memory(folder)).model.payload()

    def ask(self, round_number: int = 1, **more: Any) -> tuple[Facts, dict[str, torch.Tensor]]:
        facts = {"kind": "ask", "run": self.run, "number": 1, "client": 1, "ask": "train", "exchange": 0}
        return self.site.answer({**facts, "round": round_number, "memory": None, **more}, self.weights)

    def hello(self) -> Facts:
        """The coordinator is started anew: it says hello again, and may repeat a round."""
        return self.site.answer(hello_of(self.stage, simulated=False), {})[0]

    def lines(self) -> list[Facts]:
        return [json.loads(line) for line in (self.folder / "ledger.jsonl").read_text().splitlines()]


def test_a_question_that_is_asked_again_gets_other_noise_and_costs_again(tmp_path):
    place = Place(tmp_path)
    first = place.ask(1)
    place.hello()
    second = place.ask(1)
    assert not torch.equal(first[1]["reply.weights"], second[1]["reply.weights"])
    spent = [line["privacy"] for line in place.lines() if "privacy" in line]
    assert [line["visits"] for line in spent] == [1, 2]
    assert 0 < spent[0]["epsilon"] < spent[1]["epsilon"] <= 3
    assert spent[1]["noise"] == "added here, from the operating system"
    read_chain(tmp_path / "ledger.jsonl")  # whole, with these lines in it
    assert SiteLedger(tmp_path, "b").path.exists()


def test_a_site_ends_before_it_overspends_also_when_it_is_started_anew(tmp_path):
    place = Place(tmp_path)
    place.ask(1)
    again = Place(tmp_path)  # a new process
    assert "error" not in again.ask(2)[0]
    again.hello()
    said, sent = again.ask(1)
    assert (said["error"], sent) == ("refused", {})
    assert "budget of epsilon 3 was planned; one more would make it" in again.said[-1]
    assert "privacy" not in again.lines()[-1]
    assert json.loads((tmp_path / identity(place.run) / "privacy.json").read_text())["visits"] == 2


@pytest.mark.parametrize("fails", ["in training", "in the last check"])
def test_a_model_that_does_not_leave_costs_too(tmp_path, monkeypatch, fails):
    place = Place(tmp_path)

    def broken(self: Any, client: Any, got: Any) -> Any:
        raise RunError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(*((Method, "train") if fails == "in training" else (Site, "check_reply")), broken)
        said, sent = place.ask(1)
    assert ("error" in said, sent) == (True, {})
    assert place.lines()[-1]["privacy"]["visits"] == 1
    again = Place(tmp_path)  # a new process: the coordinator repeats the round
    assert "error" not in again.ask(1)[0]
    again.hello()
    assert again.lines()[-2]["privacy"]["visits"] == 2
    assert again.ask(2)[0]["error"] == "refused"


def test_a_site_with_too_few_samples_spends_nothing(tmp_path):
    place = Place(tmp_path, least_count=100)
    assert place.ask(1)[0]["absent"]
    assert "privacy" not in place.lines()[-1]


def test_runs_of_one_site_add_up_in_its_ledger(tmp_path):
    for seed in (0, 5):
        place = Place(tmp_path, seed=seed)
        place.hello()
        place.ask(1)
    spent = [line["privacy"] for line in place.lines() if "privacy" in line]
    assert spent[1]["visits"] == 1
    assert spent[1]["epsilon_of_all_runs"] == pytest.approx(2 * spent[0]["epsilon"], abs=1e-3)


def test_nothing_leaves_but_the_model_and_what_is_public(tmp_path):
    said, sent = Place(tmp_path).ask(1)
    assert set(sent) == {"reply.weights", "reply.samples"}
    assert said.keys() <= {"client", "memory", "forward_samples", "backward_samples", "ledger"}
    assert (said["forward_samples"], said["backward_samples"]) == (60, 60)  # not how many were drawn


@pytest.mark.parametrize("ask", ["reply", "logits", "objective", "by_hand", "mix", "load", "verdict"])
def test_no_other_function_answers(tmp_path, ask):
    place = Place(tmp_path)
    said, sent = place.ask(1, ask=ask)
    assert "error" in said
    assert sent == {}
    assert "privacy" not in place.lines()[-1]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"privacy": "sample:epsilon=3"}, "does not say how often"),
        ({"privacy": "sample:epsilon=none"}, "allowed: a number"),
        ({"method": "winnow"}, "'statistics'"),
        ({"method": "fedavg:mixup=0.4"}, "mixes samples"),
        ({"model": "lenet:norm=batch"}, "norm=group"),
    ],
)
def test_a_site_holds_a_coordinator_to_the_rules(tmp_path, changed, words):
    place = Place(tmp_path)
    place.run = {**place.run, "experiment": {**place.run["experiment"], **changed}}
    said, sent = place.ask(1)
    assert "error" in said
    assert sent == {}
    assert words in place.said[-1]


def test_sums_are_not_told(tmp_path):
    place = Place(tmp_path)
    said, _ = place.site.answer({"kind": "sums", **place.run}, {})
    assert said["error"] == "refused"
    assert "sums" in place.said[-1]


@pytest.mark.parametrize(
    ("privacy", "words"),
    [
        ("sample:epsilon=3", "differential privacy for each sample of this site: epsilon 3"),
        ("client", "added by the coordinator, who sees this site's clipped update without it"),
        (None, "the run has no differential privacy"),
    ],
)
def test_people_are_told_what_is_promised_before_anything_is_sent(tmp_path, privacy, words):
    place = Place(tmp_path, privacy=privacy)
    place.hello()
    assert any(words in line for line in place.said)


def test_a_site_clips_its_update_where_the_server_adds_the_noise(tmp_path):
    place = Place(tmp_path, privacy="client:clip=0.002")
    _, sent = place.ask(1)
    assert float((sent["reply.weights"] - place.weights["weights"]).norm()) == pytest.approx(0.002, rel=1e-2)
    assert place.lines()[-1]["privacy"]["kind"] == "client"
