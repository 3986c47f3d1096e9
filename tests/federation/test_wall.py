"""The wall: neither half of a method can reach a true label, by attribute, by file or through the evaluation side."""

from __future__ import annotations

import gc
import types
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

from fedwinnow.api import run
from fedwinnow.experiment.evaluation import Evaluation
from fedwinnow.experiment.play import Player, Watcher
from fedwinnow.experiment.prepare import Stage
from fedwinnow.federation.host import Host, Sites, Task
from fedwinnow.federation.method import Method
from fedwinnow.scene.scene import Scene
from fedwinnow.testing import toy_data
from stages import TINY, ready

PROGRAM = (types.ModuleType, type, types.CodeType, types.BuiltinFunctionType)  # code, not data
EVALUATION = (Scene, Evaluation, Stage, Player)


def reachable(*start: object) -> list[object]:
    """Every object that can be reached by following references: also what functions and generators hold on to."""
    seen: dict[int, object] = {}
    waiting = list(start)
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, PROGRAM):
            continue
        seen[id(thing)] = thing
        if isinstance(thing, types.FunctionType):
            # Not its globals: those are the program, and every function would lead to every module.
            waiting += [thing.__closure__, thing.__defaults__, thing.__kwdefaults__, thing.__dict__]
        else:
            waiting += gc.get_referents(thing)
    return list(seen.values())


def numbers_in(things: list[object]) -> list[np.ndarray]:
    """All arrays and tensors of whole numbers among these, flat; also those that some array is a view of."""
    found = []
    for thing in things:
        if isinstance(thing, torch.Tensor) and not thing.is_floating_point():
            found.append(thing.detach().cpu().numpy())
        elif isinstance(thing, np.ndarray) and thing.dtype.kind in "iub":
            found += [thing] + [thing.base] * isinstance(thing.base, np.ndarray)
        elif isinstance(thing, list | tuple) and thing and all(type(item) is int for item in thing):
            found.append(np.array(thing))
    return [values.reshape(-1) for values in found]


def truths_of(scene: Scene) -> dict[str, np.ndarray]:
    """The true labels in every order in which somebody might keep them, and which ones are wrong."""
    truths = {"all, by client": scene.true, "all, by row": scene.dataset.train.true, "wrong": scene.wrong}
    for number in range(scene.clients):
        truths[f"client {number}"] = scene.true[scene.holdings.of(number)]
        truths[f"wrong at client {number}"] = scene.wrong[scene.holdings.of(number)]
    return {name: truth for name, truth in truths.items() if truth is not None}


def leaks(scene: Scene, *start: object) -> list[str]:
    """What of the truth can be reached from here."""
    things = reachable(*start)
    found = [type(thing).__name__ for thing in things if isinstance(thing, EVALUATION)]
    for values in numbers_in(things):
        found += [
            name
            for name, truth in truths_of(scene).items()
            if len(values) == len(truth) and np.array_equal(values, truth)
        ]
    return found


def spied(folder: Path, monkeypatch: pytest.MonkeyPatch, method: str, look) -> Player:
    """Play a round, and let `look` see everything that a method is handed while the round goes on."""
    player = ready(folder, method=method, noise="constant:rate=0.5", validation=0.2, trusted=0.3, public=0.2)
    train, merge = Method.train, Method.merge

    def watched_train(self, client, got):
        reply = train(self, client, got)
        client.state["seen"] = reply["weights"]
        client.note(selected=torch.ones(len(client)))
        look(player, "client", self, client, got)
        return reply

    def watched_merge(self, server, replies):
        look(player, "server", self, server, replies)
        merge(self, server, replies)

    monkeypatch.setattr(Method, "train", watched_train)
    monkeypatch.setattr(Method, "merge", watched_merge)
    player.restore()
    player.one_round(1)
    return player


@pytest.mark.parametrize("method", ["fedavg", "oracle", "centralised"])
def test_nothing_that_a_method_is_handed_leads_to_the_truth(tmp_path, monkeypatch, method):
    looks = []

    def look(player, half, *handed):
        looks.append(half)
        # What the oracle is handed is clean, so its labels are the truth of what it holds; nothing else may be.
        assert leaks(player.stage.scene, *handed) == []
        assert not any(isinstance(thing, Sites | Host) for thing in reachable(handed))

    spied(tmp_path, monkeypatch, method, look)
    assert looks.count("server") == 1
    assert looks.count("client") == (1 if method == "centralised" else TINY["clients"])


def test_replies_end_with_their_exchange(tmp_path):
    kept = []

    @dataclass(frozen=True)
    class Keeping(Method):
        """Keeps the replies of a round for later."""

        name: ClassVar[str] = "keeping"

        def merge(self, server, replies):
            kept.append(replies)
            assert next(replies)[0] == 0

    federation = ready(tmp_path, method=Keeping()).federation
    assert federation.play_round(1).participants == [0, 1, 2, 3]
    assert list(kept[0]) == []


def test_the_host_knows_no_truth(tmp_path):
    player = ready(tmp_path, noise="constant:rate=0.5", validation=0.2)
    assert leaks(player.stage.scene, player.federation.backend, player.federation) == []


def test_the_search_would_find_a_leak(tmp_path):
    player = ready(tmp_path, noise="constant:rate=0.5")
    scene = player.stage.scene
    mine = torch.from_numpy(scene.true[scene.holdings.of(1)])
    assert "client 1" in leaks(scene, {"nested": [mine]})
    assert "client 1" in leaks(scene, lambda: mine)
    assert "client 1" in leaks(scene, (value for value in [mine.tolist()]))
    assert "wrong" in leaks(scene, scene.wrong[:])
    assert "Evaluation" in leaks(scene, player.evaluation)
    assert "Scene" in leaks(scene, [player.stage])


@pytest.mark.parametrize("method", ["fedavg", "oracle"])
def test_no_folder_that_a_method_is_handed_has_the_truth(tmp_path, monkeypatch, method):
    """Clients are handed no path at all; the server's is that of its vault, which holds what clients sent."""
    paths: dict[str, set[Path]] = {"client": set(), "server": set()}

    def look(player, half, server_or_client, handed, *rest):
        paths[half] |= {thing for thing in reachable(server_or_client, handed) if isinstance(thing, Path)}

    player = spied(tmp_path, monkeypatch, method, look)
    assert paths["client"] == set()
    assert paths["server"] == {tmp_path / "server"}
    truths = [truth.astype(kind).tobytes() for truth in truths_of(player.stage.scene).values() for kind in "qiB"]
    for folder in (tmp_path / "server", tmp_path / "clients"):
        for path in folder.rglob("*"):
            content = path.read_bytes()
            assert not any(truth in content for truth in truths), path
    assert list((tmp_path / "clients").iterdir())


def test_the_oracle_gets_fewer_samples_and_nothing_more(tmp_path):
    fair = ready(tmp_path, method="fedavg", noise="constant:rate=0.5")
    cheat = ready(tmp_path, method="oracle", noise="constant:rate=0.5")
    clients = [player.federation.backend.host.client(Task(0, "train", 1, 0, {})) for player in (fair, cheat)]
    assert len(clients[1]) < len(clients[0])
    assert vars(clients[1]).keys() == vars(clients[0]).keys()
    everything = set(map(bytes, clients[0].features.array))
    assert set(map(bytes, clients[1].features.array)) < everything


def test_a_client_cannot_change_what_the_host_holds(tmp_path):
    host = ready(tmp_path, noise="constant:rate=0.5").federation.backend.host
    before = host.sites.given.copy()
    client = host.client(Task(0, "train", 1, 0, {}))
    client.given.zero_()
    client.features.array[:] = 0
    assert np.array_equal(host.sites.given, before)
    assert host.sites.features.array.any(axis=1).all()


def test_a_client_that_needs_more_models_gets_no_way_to_other_clients(tmp_path):
    host = ready(tmp_path, noise="constant:rate=0.5").federation.backend.host
    client = host.client(Task(0, "train", 1, 0, {}))
    first, second = client.spare(), client.spare()
    assert first is not second
    assert first is not client.model
    assert not any(isinstance(thing, Sites | Host) for thing in reachable(client))


def test_the_run_folder_has_no_truth_while_methods_run(tmp_path):
    class Look(Watcher):
        def round(self, row):
            assert (tmp_path / "scene.json").exists()
            assert not (tmp_path / "scene.npz").exists()

    run(out=tmp_path, data=toy_data(), clients=3, rounds=2, epochs=1, noise="constant:rate=0.5", watchers=(Look(),))
    assert (tmp_path / "scene.npz").exists()
