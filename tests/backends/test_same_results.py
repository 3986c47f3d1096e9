"""Whatever the number of workers and the order in which they are ready: the same files, byte for byte."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import fedwinnow
from fedwinnow.backends.make_backend import Serial
from fedwinnow.backends.processes import Processes
from fedwinnow.errors import UsageError
from fedwinnow.experiment import play
from fedwinnow.experiment.prepare import setup_of
from fedwinnow.federation.host import Host, new_model
from fedwinnow.testing import comparable

SMALL = {"clients": 12, "participation": 0.5, "rounds": 2, "epochs": 1, "noise": "constant:rate=0.3", "seed": 3}

CASES = {
    "fedavg mlp": {"method": "fedavg", "model": "mlp"},
    "fedavg lenet": {"method": "fedavg", "model": "lenet", "views": "crop_flip", "clip": 1.0},
    "fedprox mlp": {"method": "fedprox:mu=0.1", "model": "mlp", "optimizer": "adam"},
    "fedprox lenet": {"method": "fedprox:mu=0.1", "model": "lenet"},
    "mixup mlp": {"method": "mixup", "model": {"kind": "mlp"}, "validation": 0.2},
    "mixup lenet": {"method": "mixup", "model": "lenet", "drop_last": True},
    "batch normalisation": {"model": "{material}/own_models.py:normalised"},
    "local batch normalisation": {"model": "{material}/own_models.py:normalised", "batch_norm": "local"},
    "an average answers": {"model": "{material}/own_models.py:normalised", "method": "coteaching:steady=0.7"},
    "all models at once": {"model": "{material}/own_models.py:normalised", "method": "geometric_median"},
    "training on the server": {
        "model": "{material}/own_models.py:dropping",
        "method": "fair:weigh=learned,steps=5",
        "trusted": 0.2,
    },
    "different models": {"method": "rhfl:pre_train=1", "model": "lenet+mlp+linear", "public": 0.3},
    "a frozen part": {"model": "{material}/own_models.py:half_frozen", "method": "fedprox:mu=0.1"},
    "every site alone": {"method": "local", "model": "{material}/own_models.py:normalised"},
    "a schedule": {"model": "mlp", "optimizer": "adamw:schedule=cosine,warm_up=1"},
    "dropout": {"model": "{material}/own_models.py:dropping"},
    "state, two exchanges, delays": {"method": "{material}/two_questions.py:delay=0.02", "model": "mlp", "rounds": 3},
}


@pytest.mark.parametrize("method", ["fedrn", "feddiv", "fedcorr", "fedelc", "fedsir"])
def test_methods_with_much_to_remember(method, tmp_path, lend):
    own = SMALL | {"method": method, "model": "mlp", "clients": 8, "rounds": 5}
    found = {}
    for workers in (0, 4):
        lend(workers)
        found[workers] = comparable(fedwinnow.run(out=tmp_path / str(workers), **own).folder)
    assert found[4] == found[0]


@pytest.mark.parametrize("case", CASES)
def test_files_are_the_same(case, material, tmp_path, lend):
    own = {
        key: value.format(material=material) if isinstance(value, str) else value for key, value in CASES[case].items()
    }
    found = {}
    for workers in (0, 1, 4):
        lend(workers)
        result = fedwinnow.run(out=tmp_path / str(workers), **SMALL | own)
        found[workers] = comparable(result.folder)
    assert found[0]["summary.json"]["status"] == "finished"
    assert found[1] == found[0]
    assert found[4] == found[0]


@pytest.mark.parametrize("model", ["linear", "mlp:hidden=16"])
def test_heads_that_are_trained_by_hand(model, tmp_path, lend, monkeypatch):
    found = {}
    for workers, fast in ((0, False), (0, True), (4, True)):
        lend(workers)
        monkeypatch.setattr(play, "setup_of", lambda *known, fast=fast: replace(setup_of(*known), fast_heads=fast))
        out = tmp_path / f"{workers} {fast}"
        found[workers, fast] = comparable(fedwinnow.run(out=out, **SMALL, method="fedprox", model=model).folder)
    assert found[4, True] == found[0, True]
    assert found[0, True]["state.safetensors"] != found[0, False]["state.safetensors"]  # it is another way


def test_a_worker_with_another_frozen_part_is_refused(material, make_host, crews, monkeypatch):
    host = make_host(model=f"{material}/own_models.py:half_frozen")
    monkeypatch.setattr(Host, "frozen", ["another"])
    with pytest.raises(UsageError, match="frozen part of the model has other values in another process"):
        Processes(host, 2, crews[2]).score("test", host.model.payload(), 10)


def test_the_method_of_the_tests_does_use_the_contract(material, tmp_path, lend):
    lend(2)
    result = fedwinnow.run(out=tmp_path, **SMALL | {"method": str(material / "two_questions.py"), "model": "mlp"})
    ledger = json.loads((tmp_path / "ledger.json").read_text())
    assert {"losses", "visits", "weights"} <= {key for site in ledger["sites"].values() for key in site}
    assert list((tmp_path / "clients").glob("*.safetensors"))
    assert all(len(row["participants"]) == 9 and "label_precision" in row for row in result.rounds)


@pytest.mark.parametrize("model", ["mlp", "lenet"])
@pytest.mark.parametrize("count", [0, 1, 50, 351])
def test_scores_are_the_same(model, count, make_host, crews):
    host = make_host(model=model)
    weights = new_model(host.sites.shape, host.setup).payload()
    backend = Processes(host, 4, crews[4])
    try:
        shared = backend.score("test", weights, count)
    finally:
        backend.close()
    assert shared.shape == (count, 10)
    assert torch.equal(shared, Serial(host).score("test", weights, count))


def test_images_that_are_decoded_when_needed(tmp_path, lend):
    generator = np.random.RandomState(0)
    for number in range(60):
        pixels = generator.randint(0, 256, (12, 12, 3)).astype(np.uint8)
        path = tmp_path / "images" / f"kind {number % 3}" / f"Bild ä {number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    found = {}
    for workers, lazy in ((0, "true"), (2, "true"), (2, "false")):
        lend(workers)
        out = tmp_path / f"{workers} {lazy}"
        fedwinnow.run(
            data=f"folder:path={tmp_path / 'images'},lazy={lazy}", clients=4, model="lenet", rounds=2, epochs=1, out=out
        )
        found[workers, lazy] = comparable(out)
    assert found[2, "true"] == found[0, "true"]
    # Decoded once and mapped from the cache: another data spec, the same model.
    assert found[2, "false"]["state.safetensors"] == found[0, "true"]["state.safetensors"]
