"""Who receives what a site sends: no site is handed another site's value as it came, unless that is declared."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from by_hand import one_client
from fedwinnow import catalogue
from fedwinnow.experiment.play import Execution
from fedwinnow.federation.host import Answer, Task
from fedwinnow.federation.method import Method, find_method
from fedwinnow.methods.fedavg import FedAvg
from stages import TINY, ready, run
from wire import Wire

EVERY = sorted(catalogue.entries("methods"))
NEEDED = {"trusted_data": {"trusted": 0.3}, "public_data": {"public": 0.3}}
PIECE = 8  # numbers in a row: fewer may agree by chance, as where a median takes single numbers of a model
ROUND = {"clients": 4, "participation": 1.0, "rounds": 4, "noise": "uniform:share=0.5,low=0.3,high=0.5"}


def pieces(value: torch.Tensor) -> set[bytes]:
    """All stretches of so many numbers, at every place, that are not one number repeated; short values as a whole."""
    flat = value.detach().cpu().contiguous().flatten()
    size = min(PIECE, len(flat))
    if size < 3 or not flat.is_floating_point():
        return set()
    windows = flat.unfold(0, size, 1)
    return {window.numpy().tobytes() for window in windows if len(window.unique()) > 1}


def handed_on(exchanged: list[tuple[Task, Answer]]) -> set[str]:
    """The keys of which one site was sent, bit for bit, what had come from another one alone."""
    found: set[str] = set()
    origin: dict[bytes, tuple[int, str]] = {}  # a piece -> who sent it, and under which key
    common: set[bytes] = set()  # pieces that the server had, or that several sites sent
    for task, answer in exchanged:
        for value in task.payload.values():
            for piece in pieces(value):
                sender, key = origin.get(piece, (task.client, ""))
                if sender != task.client and piece not in common:
                    found.add(key)
        common |= {piece for value in task.payload.values() for piece in pieces(value)} - origin.keys()
        for key, value in answer.reply.items():
            for piece in pieces(value):
                if piece in common or origin.get(piece, (task.client, ""))[0] != task.client:
                    common.add(piece)
                else:
                    origin[piece] = task.client, key
    return found


def exchanged(folder: Any, monkeypatch: pytest.MonkeyPatch, method: Any, **settings: Any) -> list[tuple[Task, Answer]]:
    wire = Wire(monkeypatch)
    needs = find_method(method).needs
    more = {key: value for need in needs for key, value in NEEDED.get(need, {}).items()}
    run(folder, method=method, **{**TINY, **ROUND, "model": "linear", **more, **settings})
    return wire.of_the_method


@pytest.mark.parametrize("name", EVERY)
def test_what_is_handed_on_is_declared(name, tmp_path, monkeypatch):
    declared = find_method(name).forwarded()
    assert handed_on(exchanged(tmp_path, monkeypatch, name)) <= declared.keys() <= find_method(name).exposes.keys()
    ledger = json.loads((tmp_path / "ledger.json").read_text())
    for key, facts in ledger["keys"].items():
        assert facts["exposes"] == find_method(name).exposes[key]
        assert facts["receivers"] == (["server", "sites"] if key in declared else ["server"])


@pytest.mark.parametrize(
    ("method", "settings", "key"),
    [
        ("fedrn", {}, "weights"),
        ("fedcorr", {}, "weights"),
        ("feddiv", {}, "weights"),
        ("krum", {}, "weights"),
        ("fedavg:aggregate=krum", {}, "weights"),
        ("fedprox:aggregate=multi_krum:keep=1", {}, "weights"),
        (
            "rofl",
            {"partition": "dirichlet:alpha=0", "clients": 3, "noise": "none", "model": "mlp:hidden=16"},
            "centroids",
        ),
        ("rhfl:reweight=false", {"clients": 2}, "probabilities"),
        (
            "fair:quality=local,passes=0",
            {"optimizer": "sgd:lr=1000", "batch_size": 4, "noise": "constant:rate=0.9"},
            "weights",
        ),
        ("fedes", {"clients": 2}, "weights"),
    ],
)
def test_what_is_declared_does_happen(method, settings, key, tmp_path, monkeypatch):
    assert key in find_method(method).forwarded()
    assert key in handed_on(exchanged(tmp_path, monkeypatch, method, **settings))


def test_an_average_of_one_site_is_that_sites_model(tmp_path, monkeypatch):
    # which is why the pages say so: no declaration can take it back
    alone = exchanged(tmp_path / "one", monkeypatch, "fedavg", participation=0.25)
    assert handed_on(alone) == {"weights"}
    assert handed_on(exchanged(tmp_path / "two", monkeypatch, "fedavg", participation=0.5)) == set()


@dataclass(frozen=True)
class Gossip(Method):
    """Hands the first row of everybody's model on, and does not say so."""

    name: ClassVar[str] = "gossip"

    def send(self, server, client):
        heard = server.recall((client + 1) % server.clients)
        return {**server.weights, **heard}

    def merge(self, server, replies):
        def listening():
            for client, reply in replies:
                server.remember(client, {"rumour": reply["weights"][1:10].reshape(3, 3)})
                yield client, reply

        super().merge(server, listening())


def test_a_method_that_hands_on_a_piece_of_a_model_is_found_out(tmp_path, monkeypatch):
    assert Gossip().forwarded() == {}
    wire = Wire(monkeypatch)
    run(tmp_path, method=Gossip(), model="mlp:hidden=8", rounds=2)
    assert handed_on(wire.of_the_method) == {"weights"}


def test_the_command_and_the_report_say_who_receives_a_key(tmp_path, capsys):
    from fedwinnow.cli import dispatch

    assert dispatch(["methods", "fedrn"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "the server and other sites" in text
    assert "of which this one is a reliable neighbour" in text
    assert dispatch(["methods", "winnow"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "other sites" not in text
    assert "every site that was visited before" in text
    assert "expected number of wrong labels of each class: the columns of `statistics` sum to it" in text
    run(tmp_path, method="fedrn")
    assert "the server and other sites" in (tmp_path / "report.html").read_text(encoding="utf-8")


# --- winnow asks everybody whom it has seen --------------------------------------------------------------------------


def offline(monkeypatch: pytest.MonkeyPatch, ask: str, clients: set[int]) -> None:
    """Sites that cannot be reached when they are asked this."""
    from fedwinnow.federation.host import Host

    usual = Host.answer

    def answer(self: Host, task: Task) -> Answer:
        if task.ask == ask and task.client in clients:
            return Answer(task.client, error="the site is not connected")
        return usual(self, task)

    monkeypatch.setattr(Host, "answer", answer)


@pytest.mark.parametrize("clients", [{1}, {0, 1, 2, 3}])
def test_winnow_goes_on_without_sites_that_do_not_answer_where_they_may_be_dropped(clients, tmp_path, monkeypatch):
    offline(monkeypatch, "expect", clients)
    result = run(tmp_path, method="winnow", rounds=4, on_client_error="drop")
    assert result.summary["status"] == "finished"
    late = [row for row in result.rounds if row["stage"] == "winnow"]
    assert late
    assert all(row["dropped"].keys() == {f"client-{client}" for client in clients} for row in late)
    assert all(row["participants"] == [0, 1, 2, 3] for row in late)


def test_or_stops_with_the_name_of_the_site(tmp_path, monkeypatch):
    from fedwinnow.errors import RunError

    offline(monkeypatch, "expect", {1})
    with pytest.raises(RunError, match=r"client 1 \(client-1\), round \d, stage '\w+', expect: the site is not"):
        run(tmp_path, method="winnow", rounds=4)


def test_an_exchange_that_a_round_can_do_without_has_no_quorum(tmp_path, monkeypatch):
    offline(monkeypatch, "expect", {0, 1, 2})
    player = ready(tmp_path, Execution(on_client_error="drop", quorum=0.9), method="winnow:warm_up=1", rounds=3)
    player.federation.method.start(player.server)
    player.federation.play_round(1)
    assert player.federation.play_round(2).dropped.keys() == {"client-0", "client-1", "client-2"}


# --- what "about the model" means ------------------------------------------------------------------------------------


def test_a_crafted_model_brings_samples_back_and_no_least_count_hinders_it():
    # All neurons of the first layer look the same way, each from a little farther on: what the update of one has and
    # that of the next has not is the sample between them. docs/exposure.md has the number.
    chance = np.random.RandomState(0)
    rows, labels = chance.normal(size=(150, 8)), chance.randint(0, 3, 150).tolist()
    client = one_client(rows, labels, classes=3, model="mlp:hidden=400", lr=10_000, batch_size=100_000)
    client.least_count = 5
    first, last = client.model.module.hidden1, client.model.module.fc
    with torch.no_grad():
        direction = torch.randn(8, generator=torch.Generator().manual_seed(5))
        first.weight.copy_((direction / direction.norm()).expand(400, 8))
        first.bias.copy_(-torch.distributions.Normal(0.0, 1.0).icdf((torch.arange(400) + 0.5) / 400))
        last.weight.copy_(torch.tensor([[0.01], [-0.02], [0.03]]).expand(3, 400))
    before = client.model.payload()
    start = [value.detach().double().clone() for value in (first.weight, first.bias)]
    client.model.load(FedAvg().train(client, before))
    moved = [value.detach().double() - old for value, old in zip((first.weight, first.bias), start, strict=True)]
    weight, bias = (value[:-1] - value[1:] for value in moved)
    seen = (weight / bias.unsqueeze(1))[bias.abs() > 1e-6].numpy()
    error = np.abs(seen[:, None] - rows[None]).max(2).min(0)
    assert (error < 0.02).sum() >= 75
