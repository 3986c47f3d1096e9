"""A run over real processes, with keys and TLS, gives the serial run's model byte for byte."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedwinnow
from fedwinnow.scene.scene import Scene
from over_network import Cast, free_port

pytest.importorskip("flwr", reason="the extra 'flower' is not installed: pip install '.[flower]'")

from fedwinnow.deployment.certificates import make_certificates

# FedAvg: below, without TLS.
METHODS = ["feddiv", *(pytest.param(name, marks=pytest.mark.slow) for name in ("fednoro", "fedgr", "fedrn"))]
SHARES = {"site-a": "0-1", "site-b": "2", "site-c": "3"}
SETTINGS = {"rounds": 3, "epochs": 1, "participation": 0.75, "model": "mlp:hidden=16"}


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scene")
    Scene.make("digits:train=200", clients=4, noise="constant:rate=0.3", seed=1).save(folder)
    return folder


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    make_certificates(folder, ("localhost", "127.0.0.1"), tuple(SHARES))
    return folder


@pytest.mark.parametrize("method", METHODS)
def test_same_state_as_the_serial_run(method: str, scene: Path, keys: Path, tmp_path: Path) -> None:
    port = free_port()
    flags = [word for key, value in SETTINGS.items() for word in (f"--{key}", value)]
    with Cast(tmp_path) as cast:
        cast.start(
            *("serve", "serve", "--scene", scene, "--method", method, "--seed", 1, *flags, "--sites", 3),
            *("--tls", keys, "--port", port, "--out", "network", "--on-client-error", "stop"),
        )
        for name, clients in SHARES.items():
            cast.start(
                *(name, "join", "--server", f"localhost:{port}", "--tls", keys / name, "--scene", scene),
                *("--clients", clients, "--heartbeat", 1800),  # nobody is lost because the machine is busy
            )
        fedwinnow.run(scene=scene, method=method, seed=1, out=tmp_path / "serial", **SETTINGS)
        for name in ("serve", *SHARES):
            cast.ended(name)
    for name in ("state.safetensors", "ledger.json", "clients.csv"):
        assert (tmp_path / "network" / name).read_bytes() == (tmp_path / "serial" / name).read_bytes()


def test_plain_text_is_possible_for_those_who_ask_for_it_by_name(scene: Path, tmp_path: Path) -> None:
    port = free_port()
    flags = ("--scene", scene, "--model", "linear", "--rounds", 1, "--epochs", 1, "--sites", 2, "--insecure")
    with Cast(tmp_path) as cast:
        cast.start("serve", "serve", *flags, "--port", port, "--out", "network")
        for name, clients in (("east", "0-2"), ("west", "3")):
            more = ("--scene", scene, "--clients", clients, "--name", name, "--heartbeat", 1800)
            cast.start(name, "join", "--server", f"localhost:{port}", "--insecure", *more)
        for name in ("serve", "east", "west"):
            cast.ended(name)
            assert "travels as plain text" in cast.said(name)
        assert "2 of 2 sites are there: east, west" in cast.said("serve")
    settings = {"rounds": 1, "epochs": 1, "participation": 1, "model": "linear"}
    fedwinnow.run(scene=scene, out=tmp_path / "serial", **settings)
    state = (tmp_path / "network" / "state.safetensors").read_bytes()
    assert state == (tmp_path / "serial" / "state.safetensors").read_bytes()


@pytest.mark.parametrize("kind", ["sample", pytest.param("client", marks=pytest.mark.slow)])
def test_a_private_run_is_the_same_at_one_seed(kind: str, scene: Path, keys: Path, tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting", reason="the extra 'privacy' is not installed: pip install '.[privacy]'")
    port, privacy = free_port(), f"{kind}:epsilon=6"
    with Cast(tmp_path) as cast:
        cast.start(
            *("serve", "serve", "--scene", scene, "--privacy", privacy, "--rounds", 2, "--epochs", 1),
            *("--model", "mlp:hidden=16", "--sites", 3, "--tls", keys, "--port", port, "--out", "network"),
            *("--on-client-error", "stop"),
        )
        for name, clients in SHARES.items():
            cast.start(
                *(name, "join", "--server", f"localhost:{port}", "--tls", keys / name, "--scene", scene),
                *("--clients", clients, "--heartbeat", 1800),
            )
        for name in ("serve", *SHARES):
            cast.ended(name)
        assert "simulated noise" in cast.said("serve")
    settings = {"rounds": 2, "epochs": 1, "participation": 1, "model": "mlp:hidden=16"}
    fedwinnow.run(scene=scene, out=tmp_path / "serial", privacy=privacy, **settings)
    for name in ("state.safetensors", "ledger.json"):
        assert (tmp_path / "network" / name).read_bytes() == (tmp_path / "serial" / name).read_bytes()
