"""local: a site's model is what it would be if there were no other site; and the shared tester."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from fedwinnow.errors import UsageError
from fedwinnow.experiment.play import Execution, Player, play_stage
from fedwinnow.experiment.prepare import prepare
from fedwinnow.experiment.run_folder import RunFolder
from fedwinnow.experiment.settings import Experiment
from fedwinnow.federation.host import OWN
from fedwinnow.federation.method import find_method
from fedwinnow.scene.scene import Scene
from fedwinnow.testing import MethodTester, toy_data
from stages import TINY, ready, run


class TestLocal(MethodTester):
    method: ClassVar[str] = "local"


class TestLocalWithOptions(MethodTester):
    method: ClassVar[str] = "local:loss=gce,mixup=0.5"


def own_models(player: Player) -> dict[int, torch.Tensor]:
    """The weights that every site keeps after the last round."""
    federation = player.federation
    for number in range(1, federation.server.rounds + 1):
        federation.play_round(number)
    versions = federation.memory.versions
    return {client: federation.memory.read(versions[client])[f"{OWN}weights"] for client in versions}


@pytest.mark.parametrize("site", [0, 1, 3])
def test_a_site_has_the_model_that_fedavg_gives_where_nobody_else_has_samples(tmp_path, site):
    settings: dict[str, Any] = {**TINY, "data": toy_data(), "rounds": 3, "noise": "constant:rate=0.3"}
    kept = own_models(ready(tmp_path / "local", method="local", **settings))
    everybody = prepare(Experiment(method="fedavg", **settings))
    alone = prepare(everybody.experiment, everybody.scene, everybody.scene.holdings.client != site)
    assert alone.available == (site,)
    player = Player(alone, RunFolder(tmp_path / "alone"), Execution(), ())
    for number in range(1, 4):
        player.federation.play_round(number)
    assert torch.equal(kept[site], player.server.weights["weights"])


def test_every_site_has_a_model_of_its_own(tmp_path):
    kept = own_models(ready(tmp_path, method="local"))
    assert len(kept) == 4
    assert all(not torch.equal(kept[0], kept[other]) for other in (1, 2, 3))


def test_nothing_but_a_number_leaves_a_site_and_nothing_comes_in(tmp_path):
    result = run(tmp_path, method="local", noise="constant:rate=0.2")
    ledger = json.loads((tmp_path / "ledger.json").read_text())
    assert ledger["keys"] == {"samples": {"exposes": "client", "receivers": ["server"]}}
    for sent in ledger["sites"].values():
        assert sent == {"samples": {"exposes": "client", "count": 3, "bytes": 3 * 8}}
    assert [row["bytes_down"] for row in result.rounds] == [0, 0, 0]
    assert [row["bytes_up"] for row in result.rounds] == [4 * 8] * 3


def test_only_drawn_sites_train(tmp_path):
    result = run(tmp_path, method="local", participation=0.5, rounds=1)
    assert len(result.rounds[0]["participants"]) == 2
    assert len(list((tmp_path / "clients").glob("*.safetensors"))) == 2


def test_a_site_judges_with_its_own_model(tmp_path):
    """Two sites call the same blobs by exchanged names: to a model of its own each is right, to a joint one neither."""
    rows = toy_data(classes=2, spread=0.1)
    scene = Scene.make(rows, clients=2, partition="iid", noise="none")
    swapped = np.where(scene.holdings.client == 1, 1 - scene.given, scene.given)
    scene = dataclasses.replace(scene, given=swapped)
    losses = {}
    for method in ("local", "fedavg"):
        stage = prepare(Experiment(data=rows, method=method, **{**TINY, "clients": 2, "rounds": 6}), scene)
        with RunFolder(tmp_path / method).locked():
            play_stage(stage, RunFolder(tmp_path / method), Execution())
        losses[method] = float(np.load(tmp_path / method / "verdicts.npz")["loss"].mean())
    assert losses["local"] < 0.1
    assert losses["fedavg"] > 0.5


def test_what_has_no_meaning_is_refused():
    for spec in ("local:steady=0.5", "local:aggregate=median"):
        with pytest.raises(UsageError, match="local"):
            find_method(spec)


def test_sites_may_have_models_of_different_kinds(tmp_path):
    assert run(tmp_path, method="local", model="mlp+linear").summary["status"] == "finished"
