"""A run over TLS with an encoder whose files lie in another place on every machine gives the serial run's model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("flwr", reason="the extra 'flower' is not installed: pip install '.[flower]'")
import fedwinnow
from encoded_pictures import OWN, pictures
from fedwinnow.deployment.certificates import make_certificates
from over_network import Cast, free_port

SETTINGS = {"method": "winnow:warm_up=1", "rounds": 2, "epochs": 1, "seed": 3, "model": "linear"}


@pytest.mark.parametrize("form", ["scene", "own data"])
def test_the_same_model_as_on_one_machine(form: str, tmp_path: Path) -> None:
    names = ("site-a", "site-b")
    make_certificates(tmp_path / "keys", ("localhost",), names)
    for name in ("centre", *names):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.py").write_text(OWN.format(factor=2.0))
    whole = pictures(sites=np.array(names)[np.arange(60) % 2])
    one = {**SETTINGS, "encoder": f"{tmp_path / 'centre' / 'centre.py'}:build", "participation": 1}
    if form == "scene":
        write(tmp_path / "whole.npz", whole, np.arange(60))
        scene = fedwinnow.Scene.make(str(tmp_path / "whole.npz"), clients=2, noise="constant:rate=0.3", seed=1)
        scene.save(tmp_path / "scene")
        fedwinnow.run(scene=tmp_path / "scene", out=tmp_path / "serial", **one)
        given = {name: ("--scene", "scene", "--clients", number) for number, name in enumerate(names)}
        centre: tuple[object, ...] = ("--scene", "scene")
    else:
        fedwinnow.run(data=whole, partition="column", out=tmp_path / "serial", **one)
        write(tmp_path / "centre.npz", whole, np.arange(60))
        for number, name in enumerate(names):
            write(tmp_path / f"{name}.npz", whole, np.arange(number, 60, 2))
        given = {name: ("--data", f"{name}.npz", "--least-count", 0, "--yes") for name in names}
        centre = ("--data", "centre.npz")
    port = free_port()
    with Cast(tmp_path) as cast:
        flags = [word for key, value in SETTINGS.items() for word in (f"--{key}", value)]
        link = ("--port", port, "--sites", 2, "--tls", "keys", "--out", "network")
        cast.start("serve", "serve", *centre, *flags, "--encoder", "centre/centre.py:build", *link)
        for name in names:
            more = ("--encoder", f"{name}/{name}.py:build", "--heartbeat", 1800, "--tls", f"keys/{name}")
            cast.start(name, "join", "--server", f"localhost:{port}", *given[name], *more)
        for name in ("serve", *names):
            cast.ended(name)
        assert "encoder: own" in cast.said("site-a")
        assert "centre.py" not in cast.said("site-a")
    network, serial = tmp_path / "network", tmp_path / "serial"
    assert (network / "encoder.npz").read_bytes() == (serial / "encoder.npz").read_bytes()
    if form == "scene":
        assert (network / "state.safetensors").read_bytes() == (serial / "state.safetensors").read_bytes()
        assert (network / "ledger.json").read_bytes() == (serial / "ledger.json").read_bytes()
    # Real sites round the counts of samples in the state's facts, not its tensors.
    found, wanted = (load_file(folder / "state.safetensors") for folder in (network, serial))
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[key], wanted[key]) for key in wanted)
    agreed = (tmp_path / "sites" / "site-a" / "agreement.json").read_text()
    assert "centre.py" not in agreed
    facts = json.loads((tmp_path / "network" / "encoder.json").read_text())
    assert facts["hash"] in agreed


def write(path: Path, data: fedwinnow.Dataset, rows: np.ndarray) -> None:
    """Some training samples, with the test samples, as a file."""
    assert data.test is not None
    np.savez(
        path,
        x=data.train.features.take(rows),
        y=np.array(data.class_names)[data.train.labels[rows]],
        x_test=data.test.features.take(np.arange(len(data.test))),
        y_test=np.array(data.class_names)[data.test.labels],
    )
