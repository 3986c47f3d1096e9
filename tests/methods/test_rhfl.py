"""RHFL: weights and targets by hand, models of different kinds, and the shared tester."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from by_hand import conversation, identity, one_client, one_server
from fedwinnow.errors import UsageError
from fedwinnow.experiment.play import Watcher
from fedwinnow.federation.host import Task
from fedwinnow.federation.method import find_method
from fedwinnow.federation.server_samples import ServerSamples
from fedwinnow.methods.rhfl import others_answers
from fedwinnow.metrics import task
from fedwinnow.testing import MethodTester, comparable, toy_data
from stages import ready, run

PUBLIC = {"public": 0.4}  # 24 samples of the toy data


class TestRhfl(MethodTester):
    method: ClassVar[str] = "rhfl:pre_train=2"
    settings: ClassVar[dict[str, Any]] = PUBLIC


class TestTheCode(MethodTester):
    method: ClassVar[str] = "rhfl:preset=code,pre_train=1"
    settings: ClassVar[dict[str, Any]] = PUBLIC


class TestDifferentModels(MethodTester):
    method: ClassVar[str] = "rhfl:pre_train=1"
    settings: ClassVar[dict[str, Any]] = PUBLIC | {"model": "mlp+linear"}


# --- by hand --------------------------------------------------------------------------------------------------------


def softmax(values):
    powers = np.exp(np.array(values))
    return (powers / powers.sum()).tolist()


def with_public(client, rows):
    """The client, with these public samples."""
    unknown = torch.full((len(rows),), -1)
    features = type(client.features)(np.asarray(rows, np.float32))
    client.public = replace(client, features=features, given=unknown)
    return client


@pytest.fixture
def server(tmp_path):
    public = ServerSamples(**vars(one_client([[1.0, 0.0]] * 5, [-1] * 5, batch_size=2)), purpose="public")
    made = one_server(tmp_path, clients=4, participation=1.0, public=public)
    made.begin(1)
    return made


def test_weights_are_even_at_first(server):
    method = find_method("rhfl")
    method.start(server)
    assert method.weights(server, {0: 1.0, 1: 2.0, 3: 4.0}) == {0: 0.5, 1: 0.5, 3: 0.5}
    assert server.state["loss"].tolist() == pytest.approx([1.0, 2.0, float("nan"), 4.0], nan_ok=True)


def test_who_learns_weighs_more(server):
    method = find_method("rhfl")
    method.start(server)
    method.weights(server, {0: 1.0, 1: 2.0, 3: 4.0})
    # relative falls: (1 - .5) / .5 = 1, (2 - 1) / 1 = 1 and (4 - 1) / 1 = 3; shares .2, .2 and .6, times eta = .5
    found = method.weights(server, {0: 0.5, 1: 1.0, 3: 1.0})
    assert list(found.values()) == pytest.approx(softmax([0.6, 0.6, 0.8]))
    assert server.notes["confidence"].keys() == {"0", "1", "3"}


def test_a_loss_that_rose(server):
    before, now = {0: 1.0, 1: 1.0, 2: 1.0}, {0: 0.5, 1: 2.0, 2: 1.0}  # falls: 1, -.5 and 0
    for negative, shares in (("clamp", [1, 0, 0]), ("keep", [2, -1, 0])):
        method = find_method(f"rhfl:negative={negative}")
        method.start(server)
        method.weights(server, before)
        found = method.weights(server, now)
        assert list(found.values()) == pytest.approx(softmax([0.5 + 0.5 * share for share in shares]))


def test_where_nobody_moves_or_no_weighting_is_wanted_all_weigh_the_same(server):
    method = find_method("rhfl")
    method.start(server)
    for _ in range(2):
        found = method.weights(server, {0: 1.0, 1: 2.0, 2: 0.0})
    assert list(found.values()) == pytest.approx([1 / 3] * 3)
    plain = find_method("rhfl:reweight=false")
    assert list(plain.weights(server, {0: 0.1, 1: 2.0, 2: 0.0}).values()) == [0.5] * 3


def test_somebody_new_has_moved_by_nothing(server):
    method = find_method("rhfl")
    method.start(server)
    method.weights(server, {0: 1.0, 1: 1.0})
    found = method.weights(server, {0: 0.5, 2: 9.0})
    assert list(found.values()) == pytest.approx(softmax([1.5, 1.0]))


def test_everybody_is_told_what_the_others_say():
    said = {0: [[1.0, 0.0]], 1: [[0.5, 0.5]], 2: [[0.0, 1.0]]}
    answers = {client: {"probabilities": torch.tensor(rows)} for client, rows in said.items()}
    found = others_answers(answers, {0: 0.5, 1: 0.2, 2: 0.3})
    assert found[0].tolist() == [pytest.approx([0.1, 0.4])]
    assert found[1].tolist() == [pytest.approx([0.5, 0.3])]
    assert found[2].tolist() == [pytest.approx([0.6, 0.1])]


def test_one_step_towards_the_others():
    client = with_public(one_client([[1.0, 0.0]], [0], lr=0.5), [[1.0, 0.0], [0.0, 1.0], [3.0, 3.0]])
    client.model.load(identity())
    target = torch.tensor([[0.2, 0.6]])
    reply = find_method("rhfl").align(client, {"piece": torch.tensor([1, 2]), "target": target})
    # Sample (0, 1): p = softmax(0, 1); the slope of logit c is (sum of the target) p_c - target_c.
    p = np.exp([0.0, 1.0]) / np.exp([0.0, 1.0]).sum()
    slope = 0.8 * p - [0.2, 0.6]
    moved = identity()["weights"].clone()
    moved[[1, 3]] -= torch.tensor(0.5 * slope).float()  # what the second input adds to each logit
    moved[[4, 5]] -= torch.tensor(0.5 * slope).float()
    assert client.model.weights.tolist() == pytest.approx(moved.tolist(), abs=1e-6)
    assert reply.keys() == {"samples"}
    assert (client.public.forward_samples, client.public.backward_samples) == (1, 1)


def test_a_clients_answer():
    client = with_public(one_client([[2.0, 0.0], [0.0, 2.0]], [0, 0]), [[1.0, 0.0], [0.0, 3.0]])
    client.model.load(identity())
    reply = find_method("rhfl:loss=cross_entropy").answer(client, {"next": torch.tensor([1, 2])})
    assert float(reply["loss"]) == pytest.approx((np.log1p(np.exp(-2)) + np.log1p(np.exp(2))) / 2, abs=1e-6)
    assert reply["probabilities"].tolist() == [pytest.approx(softmax([0.0, 3.0]), abs=1e-6)]


@pytest.mark.parametrize(("preset", "aligned"), [("paper", 1), ("code", 3)])
def test_the_order_of_a_round(server, preset, aligned):
    method = find_method(f"rhfl:preset={preset}")
    method.start(server)
    sent = []

    def reply(ask, client, got):
        sent.append((ask, client, got))
        if "next" in got:
            count = int(got["next"][1] - got["next"][0])
            said = {"probabilities": torch.full((count, 2), 0.5)}
            return said | ({"loss": torch.ones(1)} if ask == "answer" else {})
        return {"samples": torch.tensor(1)}

    everybody = [0, 1, 2, 3]
    asked = conversation(method, server, reply)
    assert asked == [(ask, everybody) for ask in ("prepare", "answer", *["align"] * aligned, "train")]
    covered = [got["piece"].tolist() for ask, client, got in sent if (ask, client) == ("align", 0)]
    assert covered == ([[0, 5]] if preset == "paper" else [[0, 2], [2, 4], [4, 5]])
    server.begin(2)
    assert conversation(method, server, reply)[0][0] == "answer"


def test_alone_there_is_nobody_to_learn_from(server):
    method = find_method("rhfl:pre_train=0")
    server.clients, server.available = 1, (0,)
    method.start(server)
    answer = {"loss": torch.ones(1), "probabilities": torch.full((5, 2), 0.5), "samples": torch.tensor(1)}
    asked = conversation(method, server, lambda ask, client, got: answer)
    assert [ask for ask, _ in asked] == ["answer", "train"]


# --- own models -----------------------------------------------------------------------------------------------------


def played_from_start(folder, **settings):
    player = ready(folder, method="rhfl:pre_train=1", **PUBLIC, **settings)
    player.restore()
    for number in (1, 2):
        player.one_round(number)
    return player.federation


def test_every_client_keeps_its_own_model(tmp_path):
    federation = played_from_start(tmp_path, model="mlp:hidden=4+linear", clients=3)
    kept = {client: load_file(tmp_path / "clients" / name) for client, name in federation.memory.versions.items()}
    sizes = [len(kept[client]["own.weights"]) for client in range(3)]
    assert sizes[0] == sizes[2] != sizes[1] == 2 * 3 + 3
    assert not torch.equal(kept[0]["own.weights"], kept[2]["own.weights"])
    host = federation.backend.host
    assert host.models[1].trainable == 9


def test_a_client_finds_its_model_as_it_left_it(tmp_path):
    federation = played_from_start(tmp_path, model="mlp:hidden=4+linear", clients=3)
    host = federation.backend.host
    for client in (1, 2, 0, 2):
        version = federation.memory.versions[client]
        one = host.client(Task(client, "judge", 3, 0, {}, version))
        assert torch.equal(one.model.weights, load_file(tmp_path / "clients" / version)["own.weights"])
        assert "own.weights" not in one.state


def test_the_scores_are_the_mean_of_all_models(tmp_path):
    federation = played_from_start(tmp_path, model="mlp+linear", clients=3)
    labels = labels_of_test(federation)
    logits = [reply["logits"].numpy() for _, reply in federation.ask_all("score test", (0, 1, 2))]
    assert len({round(float(one.sum()), 4) for one in logits}) == 3
    accuracy = np.mean([np.mean(one.argmax(1) == labels) for one in logits])
    row = task.of_several(logits, labels)
    assert row["accuracy"] == pytest.approx(accuracy)
    assert len(labels) == 60 - 24


def labels_of_test(federation):
    """The labels of what is left of the toy data's test part."""
    data = toy_data()
    known = dict(zip(map(bytes, data.test.features.array), data.test.labels, strict=True))
    return np.array([known[bytes(row)] for row in federation.backend.host.parts["test"].array])


def test_scores_of_several_models_by_hand():
    labels = np.array([0, 1])
    right, wrong = [[2.0, 0.0], [0.0, 2.0]], [[0.0, 1.0], [1.0, 0.0]]
    found = task.of_several([right, wrong], labels)
    assert (found["accuracy"], found["ensemble_accuracy"]) == (0.5, 1.0)
    assert found["confusion"] == [[1, 1], [1, 1]]
    assert found["per_class_recall"] == [0.5, 0.5]
    assert found["loss"] == pytest.approx((np.log1p(np.exp(-2)) + np.log1p(np.exp(1))) / 2)
    assert found["top5"] is None


def test_resumed_with_different_models_it_is_the_same_run(tmp_path):
    class Stop(Watcher):
        def round(self, row):
            if row["round"] == 1:
                raise KeyboardInterrupt

    settings = {"method": "rhfl:pre_train=1", "model": ["mlp:hidden=4", "linear"], **PUBLIC}
    straight = run(tmp_path / "straight", **settings)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "broken", **settings, watchers=(Stop(),))
    resumed = run(tmp_path / "broken", **settings | {"model": "mlp:hidden=4+linear"}, resume=True)
    assert comparable(resumed.folder) == comparable(straight.folder)
    assert straight.rounds[0]["ensemble_accuracy"] is not None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "rhfl"}, r"add public=0\.2"),
        ({"method": "fedavg", "model": "mlp+linear"}, "there can be only one; allowed: one model"),
        ({"method": "rhfl", "model": "mlp+linaer", **PUBLIC}, "linear"),
        ({"method": "rhfl", "model": "mlp+", **PUBLIC}, "Did you mean 'mlp'"),
        ({"method": "rhfl:aggregate=median", **PUBLIC}, "allowed: mean"),
    ],
)
def test_what_a_user_may_get_wrong(tmp_path, settings, message):
    with pytest.raises(UsageError, match=message):
        run(tmp_path, **settings)


def test_a_file_with_a_plus_in_its_path_is_one_model(tmp_path):
    folder = tmp_path / "c++"
    folder.mkdir()
    (folder / "mine.py").write_text(
        "from torch import nn\ndef build(sample_shape, classes):\n    return nn.Linear(sample_shape[0], classes)\n"
    )
    assert run(tmp_path / "run", model=f"{folder}/mine.py", rounds=1).summary["status"] == "finished"


def test_cost(tmp_path):
    first, second = run(
        tmp_path, method="rhfl:pre_train=2", **PUBLIC, clients=4, rounds=2, epochs=3, model="linear"
    ).rounds
    public, samples, answers = 24, 120, 24 * 3 * 4  # |public| C floats
    assert second["forward_samples"] == samples * (1 + 3) + 4 * public * 2  # L_k, own epochs; answered and aligned
    assert second["backward_samples"] == samples * 3 + 4 * public
    assert first["backward_samples"] - second["backward_samples"] == 2 * samples
    stretch, loss, count = 16, 8, 8
    assert second["bytes_down"] == 4 * (stretch + stretch + answers)
    assert second["bytes_up"] == 4 * (answers + loss + count + count)


def test_weak_clients_learn_from_the_others(tmp_path):
    """Every client has one class only; alone it could never be right about the others."""
    settings = {"data": toy_data(180), "clients": 3, "partition": "dirichlet:alpha=0", "rounds": 6, "epochs": 1}
    settings |= {"public": 0.5, "optimizer": "sgd:lr=0.1", "batch_size": 8}
    alone = run(tmp_path / "alone", method="rhfl:pre_train=3,public_epochs=0", **settings)
    together = run(tmp_path / "together", method="rhfl:pre_train=3,public_epochs=3", **settings)
    assert together.summary["last"]["accuracy"] > alone.summary["last"]["accuracy"] + 0.1
