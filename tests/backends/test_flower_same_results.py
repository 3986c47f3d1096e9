"""A run over real processes, with keys and TLS, gives the serial run's model byte for byte."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedwinnow
from fedwinnow.scene.scene import Scene
from over_network import Cast, free_port

pytest.importorskip("flwr", reason="the extra 'flower' is not installed: pip install 'fedwinnow[flower]'")

from fedwinnow.network.keys import make_certificates

METHODS = ["fedavg", "feddiv", "fednoro", "fedgr", "fedrn"]
SHARES = {"site-a": "0-1", "site-b": "2,3", "site-c": "4-5"}
SETTINGS = {"rounds": 4, "epochs": 1, "participation": 0.7}


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scene")
    Scene.make("digits:train=240", clients=6, noise="constant:rate=0.3", seed=1).save(folder)
    return folder


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    make_certificates(folder, ("localhost", "127.0.0.1"), tuple(SHARES))
    return folder


@pytest.mark.parametrize("method", METHODS)
def test_same_state_as_the_serial_run(method: str, scene: Path, keys: Path, tmp_path: Path) -> None:
    fedwinnow.run(scene=scene, method=method, seed=1, out=tmp_path / "serial", **SETTINGS)
    port = free_port()
    flags = [word for key, value in SETTINGS.items() for word in (f"--{key}", value)]
    with Cast(tmp_path / "logs") as cast:
        cast.start(
            *("serve", "serve", "--scene", scene, "--method", method, "--seed", 1, *flags, "--sites", 3),
            *("--tls", keys, "--port", port, "--out", tmp_path / "network", "--on-client-error", "stop"),
        )
        for name, clients in SHARES.items():
            cast.start(
                *(name, "join", "--server", f"127.0.0.1:{port}", "--tls", keys / name, "--scene", scene),
                *("--clients", clients, "--out", tmp_path / name),
            )
        for name in ("serve", *SHARES):
            cast.ended(name)
    state = (tmp_path / "network" / "state.safetensors").read_bytes()
    assert state == (tmp_path / "serial" / "state.safetensors").read_bytes()
    for name in ("ledger.json", "clients.csv"):
        assert (tmp_path / "network" / name).read_text() == (tmp_path / "serial" / name).read_text()
