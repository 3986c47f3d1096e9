"""The average of global models that answers in place of the last one: an option of every method."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy

from by_hand import one_server
from fedwinnow import Method, catalogue, run
from fedwinnow.auditing.judging_models import find_judge, parts_of, train_and_judge
from fedwinnow.errors import UsageError
from fedwinnow.experiment.play import Execution, play_stage
from fedwinnow.experiment.prepare import prepare
from fedwinnow.experiment.run_folder import RunFolder
from fedwinnow.experiment.settings import Experiment
from fedwinnow.federation.host import Host
from fedwinnow.federation.server import answering_server, move_average, start_average
from fedwinnow.methods.two_models import SECOND
from fedwinnow.testing import MethodTester, comparable, toy_data

SMALL = {
    "data": toy_data(samples=48),
    "model": "linear",
    "clients": 4,
    "participation": 0.5,
    "epochs": 1,
    "batch_size": 8,
    "rounds": 4,
    "optimizer": "sgd:lr=0.1",
    "noise": "uniform:share=0.5,low=0.3,high=0.5",
}
NEEDS = {"trusted_data": {"trusted": 0.2}, "public_data": {"public": 0.2}}
WITHOUT_GLOBAL_MODEL = {"local", "rhfl"}
AVERAGED = sorted(set(catalogue.entries("methods")) - WITHOUT_GLOBAL_MODEL)


def settings(method):
    needs = catalogue.find("methods", method.partition(":")[0]).facts["needs"]
    found = SMALL | {"method": method}
    for need in needs:
        found |= NEEDS.get(need, {})
    return found


def state_of(result):
    return load_file(result.folder / "state.safetensors")


def model_in(state):
    """The weights of the saved linear model, as one vector."""
    return torch.cat([state["model.fc.weight"].flatten(), state["model.fc.bias"]])


class TestFedAvgSteady(MethodTester):
    method = "fedavg:steady=0.6"


class TestCoTeachingSteady(MethodTester):
    method = "coteaching:steady=0.6"


class TestFedFixerSteady(MethodTester):
    method = "fedfixer:steady=0.6"


# --- what it is ----------------------------------------------------------------------------------------------------


def test_at_first_a_mean_and_then_it_follows_slowly(tmp_path):
    server, found = one_server(tmp_path, rounds=4), []
    start_average(server)
    for number, value in enumerate((2.0, 4.0, 8.0, 0.0), 1):
        server.begin(number)
        server.weights = {"weights": torch.full((6,), value), "counters": torch.tensor([number])}
        move_average(server, 0.5)
        found.append(float(answering_server(server, 0.5).weights["weights"][0]))
        assert answering_server(server, 0.5).weights["counters"].tolist() == [number]
        if number < 4:
            assert float(server.weights["weights"][0]) == value  # training goes on from the global model
    # 2, then (2 + 4) / 2, then half of the way to 8, then half of the way to 0
    assert found == pytest.approx([2.0, 3.0, 5.5, 2.75])
    assert float(server.weights["weights"][0]) == pytest.approx(2.75)  # what is kept of the run is what was tested
    assert float(server.state["last.weights"][0]) == 0.0


def test_steady_1_is_the_mean_of_all_models(tmp_path):
    server = one_server(tmp_path, rounds=9)
    start_average(server)
    for number, value in enumerate((1.0, 5.0, 9.0), 1):
        server.begin(number)
        server.weights = {"weights": torch.full((6,), value)}
        move_average(server, 1.0)
    assert float(server.state["steady.weights"][0]) == pytest.approx(5.0)


def test_a_model_that_starts_anew_is_not_mixed_with_the_old_one(tmp_path):
    server = one_server(tmp_path, rounds=9)
    start_average(server)
    for number, value in enumerate((1.0, 5.0, 100.0, 200.0), 1):
        server.begin(number)
        if number == 3:
            server.start_anew({"weights": torch.zeros(6)})
        server.weights = {"weights": torch.full((6,), value)}
        move_average(server, 0.9)
    assert float(server.state["steady.weights"][0]) == pytest.approx(150.0)


def test_by_hand_from_runs_without_it(tmp_path):
    """FedAvg does not look at the number of rounds, so a run of r rounds ends with the r-th global model."""
    raw = [
        model_in(state_of(run(out=tmp_path / str(rounds), **settings("fedavg") | {"rounds": rounds})))
        for rounds in (1, 2, 3, 4)
    ]
    steady = state_of(run(out=tmp_path / "steady", **settings("fedavg:steady=0.6")))
    by_hand = raw[0]
    for number, model in enumerate(raw[1:], 2):
        kept = min(0.6, 1 - 1 / number)
        by_hand = kept * by_hand + (1 - kept) * model
    torch.testing.assert_close(model_in(steady), by_hand)
    assert not torch.allclose(by_hand, raw[-1])
    # in the server's memory a model is one vector, in the order of its parameters
    assert torch.equal(steady["server.last.weights"], raw[-1])


# --- every method --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", AVERAGED)
def test_every_method_trains_as_before_and_answers_with_the_average(method, tmp_path):
    plain = run(out=tmp_path / "plain", **settings(f"{method}:steady=0"))
    steady = run(out=tmp_path / "steady", **settings(f"{method}:steady=0.7"))
    before, after = state_of(plain), state_of(steady)
    assert not [key for key in before if key.startswith(("server.steady", "server.last"))]
    for first, second in zip(plain.rounds, steady.rounds, strict=True):
        assert first["participants"] == second["participants"]
        assert first["backward_samples"] == second["backward_samples"]
    # nothing that is trained has changed; what answers has
    assert torch.equal(after["server.last.weights"], model_in(before))
    assert torch.equal(after["server.steady.weights"], model_in(after))
    assert not torch.equal(model_in(after), model_in(before))
    for key in (key for key in before if key.startswith("server.")):
        torch.testing.assert_close(after[key], before[key], rtol=0, atol=0, equal_nan=True)
    again = plain.rounds[0]["accuracy"], plain.rounds[0]["loss"]
    assert again == (steady.rounds[0]["accuracy"], steady.rounds[0]["loss"])  # the mean of one model is that model
    assert plain.rounds[-1]["loss"] != steady.rounds[-1]["loss"]


def test_both_models_of_a_method_with_two_are_averaged(tmp_path):
    state = state_of(run(out=tmp_path, **settings("coteaching:steady=0.7")))
    assert torch.equal(state[f"payload.{SECOND}weights"], state[f"server.steady.{SECOND}weights"])
    assert not torch.equal(state[f"server.steady.{SECOND}weights"], state[f"server.last.{SECOND}weights"])


def test_where_every_client_has_its_own_model_it_is_refused():
    with pytest.raises(
        UsageError, match=r"rhfl: steady=0\.5 was given, but every client has its own model.*allowed: 0"
    ):
        catalogue.make("methods", "rhfl:steady=0.5")


@dataclass(frozen=True)
class AnswersFromMemory(Method):
    """Answers with a model that is not among the weights."""

    name: ClassVar[str] = "from_memory"

    def start(self, server):
        server.state["mine.weights"] = server.weights["weights"].clone()

    def models(self, server):
        return [server.weights, {"weights": server.state["mine.weights"]}]


def test_a_method_that_answers_with_another_model_is_refused_and_not_half_averaged(tmp_path):
    with pytest.raises(UsageError, match=r"answers with a model that is not in server\.weights"):
        run(out=tmp_path / "a", **SMALL | {"method": AnswersFromMemory(steady=0.5)})
    assert run(out=tmp_path / "b", **SMALL | {"method": AnswersFromMemory()}).summary["status"] == "finished"


# --- who judges ----------------------------------------------------------------------------------------------------


def test_the_average_judges_and_the_global_model_trains(tmp_path, monkeypatch):
    sent, usual = [], Host.answer
    monkeypatch.setattr(Host, "answer", lambda host, task: sent.append(task) or usual(host, task))
    stage = prepare(Experiment(**settings("gce:steady=0.7") | {"participation": 1.0}))
    train_and_judge(stage, tmp_path, find_judge("final"), Execution())
    folds = [sent[start : start + len(sent) // 3] for start in range(0, len(sent), len(sent) // 3)]
    trained = prepare(Experiment(**settings("gce") | {"participation": 1.0}))
    for number, tasks in enumerate(folds, start=1):
        state = load_file(tmp_path / f"fold-{number}" / "state.safetensors")
        assert {task.ask for task in tasks} == {"train", "predict", "audit"}
        for task in tasks:
            if task.ask != "train":
                assert torch.equal(task.payload["weights"], model_in(state))
        plain = []
        for count in (1, 2, 3):
            fewer = dataclasses.replace(trained.experiment, rounds=count)
            part = parts_of(dataclasses.replace(trained, experiment=fewer), find_judge("final"))[number - 1].stage
            place = RunFolder(tmp_path / f"plain-{number}-{count}")
            with place.locked():
                play_stage(part, place, Execution())
            plain.append(model_in(load_file(place.path / "state.safetensors")))
        for task in tasks:
            if task.ask == "train" and task.round > 1:
                assert torch.equal(task.payload["weights"], plain[task.round - 2])


def test_the_losses_that_a_run_writes_are_those_of_the_saved_model(tmp_path):
    result = run(out=tmp_path, **settings("fedavg:steady=0.7"))
    state = state_of(result)
    scene = result.scene
    x = torch.from_numpy(toy_data(samples=48).train.features.array[scene.holdings.rows])
    logits = x @ state["model.fc.weight"].T + state["model.fc.bias"]
    losses = cross_entropy(logits, torch.from_numpy(scene.given), reduction="none")
    written = np.load(tmp_path / "verdicts.npz")["loss"]
    np.testing.assert_allclose(written, losses.numpy(), rtol=1e-4, atol=1e-5)


# --- the guarantees ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedavg:steady=0.6", "coteaching:steady=1,ramp=2", "gce:steady=0.3,mixup=1"])
def test_continued_with_more_rounds_equals_played_at_once(method, tmp_path):
    run(out=tmp_path / "a", **settings(method) | {"rounds": 2})
    run(out=tmp_path / "a", resume=True, **settings(method) | {"rounds": 3})
    longer = run(out=tmp_path / "a", resume=True, **settings(method) | {"rounds": 5})
    assert comparable(longer.folder) == comparable(run(out=tmp_path / "b", **settings(method) | {"rounds": 5}).folder)
