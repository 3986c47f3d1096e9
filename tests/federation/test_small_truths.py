"""Rules of one line that everything rests on, each by itself and by hand."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np
import pytest
import torch

from by_hand import identity, one_client, one_server
from fedwinnow.experiment.play import Execution
from fedwinnow.federation import server as server_module
from fedwinnow.federation.client import clip_norm
from fedwinnow.federation.host import Task
from fedwinnow.federation.ledger import Ledger, TooFew, without_small_classes
from fedwinnow.federation.memory import Memory
from fedwinnow.federation.method import Method, find_method
from stages import ready


def test_a_gradient_is_shortened_and_never_lengthened():
    long, short = torch.tensor([3.0, 4.0]), torch.tensor([0.3, 0.4])
    clip_norm(long, 1.0)
    clip_norm(short, 1.0)
    assert long.tolist() == pytest.approx([0.6, 0.8], abs=1e-5)
    assert short.tolist() == torch.tensor([0.3, 0.4]).tolist()  # to the last bit


def drawn(server, number: int) -> list[int]:
    server.round = number
    return server.sample()


def test_who_takes_part_differs_between_rounds_and_seeds_and_everybody_comes(tmp_path):
    server = one_server(tmp_path, clients=10, participation=0.3)
    rounds = [drawn(server, number) for number in range(1, 41)]
    assert all(len(set(clients)) == 3 for clients in rounds)
    assert len({tuple(clients) for clients in rounds}) > 20
    assert {client for clients in rounds for client in clients} == set(range(10))
    assert rounds == [drawn(server, number) for number in range(1, 41)]  # and the same again
    other = dataclasses.replace(server, seed=1)
    assert rounds != [drawn(other, number) for number in range(1, 41)]


def test_a_pass_visits_everybody_once_in_an_order_of_the_seed_and_the_pass(tmp_path):
    server = one_server(tmp_path, clients=10, participation=0.3)
    assert server.rounds_per_pass == 4
    passes = [[client for index in range(4) for client in server.turn(4 * number + index)] for number in range(3)]
    assert all(sorted(one) == list(range(10)) for one in passes)
    assert len({tuple(one) for one in passes}) == 3
    other = dataclasses.replace(server, seed=1)
    assert [client for index in range(4) for client in other.turn(index)] != passes[0]


def test_fedavg_weighs_a_model_by_its_samples(tmp_path):
    server = one_server(tmp_path)
    size = len(server.weights["weights"])
    replies = [(0, reply_of(size, 10.0, 1)), (1, reply_of(size, 2.0, 3))]
    find_method("fedavg").merge(server, iter(replies))
    assert server.weights["weights"].tolist() == [4.0] * size  # (1 * 10 + 3 * 2) / 4


def reply_of(size: int, value: float, samples: int) -> dict[str, torch.Tensor]:
    return {"weights": torch.full((size,), value), "samples": torch.tensor(samples)}


def test_fedprox_adds_half_of_mu_times_the_squared_distance():
    client = one_client([[1.0, 0.0], [0.0, 1.0]], [0, 1])
    sent, moved = identity(), identity()
    moved["weights"] = moved["weights"] + torch.tensor([1.0, 0.0, 0.0, 2.0, 0.0, 0.0])  # a squared distance of 5
    client.model.load(moved)
    rows, x = torch.arange(2), torch.eye(2)

    def loss(method: str) -> float:
        return float(find_method(method).objective(client, rows, x, client.given, sent).detach())

    assert loss("fedprox:mu=0.6") - loss("fedavg") == pytest.approx(0.3 * 5, abs=1e-5)
    assert loss("fedprox:mu=0") == pytest.approx(loss("fedavg"), abs=1e-6)


def test_every_client_round_and_question_has_random_numbers_of_its_own(tmp_path):
    tasks = [
        Task(client, ask, number, exchange, {})
        for client in range(4)
        for ask in ("train", "measure")
        for number in (1, 2, 3)
        for exchange in (0, 1)
    ]

    def drawn_by(seed: int) -> list[tuple[float, ...]]:
        """What every task draws from its own generator, and what layers draw."""
        host = ready(tmp_path / str(seed), seed=seed).federation.backend.host
        generators = (host.client(task).generator for task in tasks)
        return [(*torch.rand(3, generator=one).tolist(), *torch.rand(3).tolist()) for one in generators]

    first = drawn_by(0)
    assert len(set(first)) == len(tasks)
    assert first == drawn_by(0)  # and the same again, whatever was drawn before
    assert not set(first) & set(drawn_by(1))


def test_clients_have_the_labels_that_they_were_given_and_not_the_true_ones(tmp_path):
    player = ready(tmp_path, noise="constant:rate=0.5")
    scene, host = player.stage.scene, player.federation.backend.host
    for client in range(scene.clients):
        given = host.client(Task(client, "train", 1, 0, {})).given.tolist()
        assert given == scene.given[scene.holdings.of(client)].tolist()
        assert given != scene.true[scene.holdings.of(client)].tolist()


def test_the_least_count_itself_is_enough_and_one_less_is_not():
    client = dataclasses.replace(one_client(np.zeros((9, 2)), [0] * 5 + [1] * 4, classes=3), least_count=5)
    client.enough(5)
    with pytest.raises(TooFew):
        client.enough(4)
    assert client.few.tolist() == [False, True, False]  # five samples are enough, four are not, none need no hiding


def test_what_is_said_of_a_small_class_is_zero():
    reply = {"indicator": torch.tensor([1.0, 2.0, 3.0]), "table": torch.ones(2, 3), "samples": torch.tensor(9)}
    said = without_small_classes(reply, {"indicator": 0, "table": 1}, torch.tensor([False, True, False]))
    assert said["indicator"].tolist() == [1.0, 0.0, 3.0]
    assert said["table"].tolist() == [[1.0, 0.0, 1.0]] * 2
    assert said["samples"].item() == 9


def test_what_a_client_remembers_it_finds_at_its_next_visit_and_a_failed_visit_leaves_no_trace(tmp_path):
    @dataclasses.dataclass(frozen=True)
    class Counting(Method):
        """Every client counts its visits; client 1 fails in round 2."""

        name: ClassVar[str] = "counting"

        def train(self, client, got):
            client.state["visits"] = client.state.get("visits", torch.zeros(1)) + 1
            if (client.id, client.round) == (1, 2):
                raise ValueError("not now")
            return super().train(client, got)

    federation = ready(tmp_path, Execution(on_client_error="drop"), method=Counting(), rounds=3).federation
    for number in (1, 2, 3):
        federation.play_round(number)
    memory = federation.memory
    assert [float(memory.read(memory.versions[client])["visits"]) for client in range(4)] == [3.0, 2.0, 3.0, 3.0]
    assert [name for name in memory.held if name.startswith("000000")] == [
        f"000000-{number}-0.safetensors" for number in (1, 2, 3)
    ]
    assert not memory.folder.exists()  # no checkpoint needed them yet
    memory.settle(memory.versions.values())
    memory.prune(memory.versions.values())
    assert {path.name for path in memory.folder.iterdir()} == set(memory.versions.values()) == set(memory.held)
    on_disk = Memory(memory.folder, memory.versions)
    assert [float(on_disk.read(version)["visits"]) for version in memory.versions.values()] == [3.0, 2.0, 3.0, 3.0]


def test_memories_beyond_what_may_be_held_are_files_at_once(tmp_path):
    memory = Memory(tmp_path, hold=8)
    small, large = {"x": torch.ones(2)}, {"x": torch.ones(3)}
    assert memory.write(0, 1, 0, small) in memory.held
    assert memory.write(1, 1, 0, large) not in memory.held
    assert [path.name for path in tmp_path.iterdir()] == ["000001-1-0.safetensors"]
    read = memory.read("000000-1-0.safetensors")
    read["x"] += 1  # what a method does with its copy stays with it
    assert memory.read("000000-1-0.safetensors")["x"].tolist() == [1.0, 1.0]
    memory.prune(())
    assert memory.held == {}
    assert memory.held_bytes == 0
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("levels", [0, 5])
def test_who_takes_part_is_who_comes_first_in_the_order_of_luck(monkeypatch, levels):
    """Also where two have the same luck."""
    usual = server_module.uniforms
    if levels:
        monkeypatch.setattr(server_module, "uniforms", lambda *given: np.floor(usual(*given) * levels) / levels)
    for pool in ([4], [2, 3, 9], list(range(5, 60))):
        luck = server_module.uniforms(3, "participants", 7, np.asarray(pool))
        order = [pool[place] for place in np.argsort(luck, kind="stable")]
        for count in {1, 2, len(pool) // 2 + 1, len(pool), len(pool) + 4}:
            assert server_module.drawn(3, 7, pool, count) == sorted(order[:count])


def test_a_copy_of_the_ledger_stays_what_it_is():
    ledger = Ledger({"weights": "model"})
    ledger.record("a", {"weights": torch.zeros(2)})
    before = dict(ledger.entries)
    ledger.record("a", {"weights": torch.zeros(2)})
    assert before == {"a": {"weights": [1, 8]}}
    assert ledger.entries == {"a": {"weights": [2, 16]}}
