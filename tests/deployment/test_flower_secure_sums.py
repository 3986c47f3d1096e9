"""Secure sums over the network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("flwr")
import fedwinnow
from fedwinnow.deployment.certificates import make_certificates
from fedwinnow.scene.scene import Scene
from over_network import Cast, free_port


def test_over_tls_as_on_one_machine(tmp_path: Path) -> None:
    """Winnow asks several questions in a round; a site with several clients takes part in each sum as so many."""
    scene = Scene.make("digits:train=200", clients=4, noise="constant:rate=0.3", seed=3)
    scene.save(tmp_path / "scene")
    make_certificates(tmp_path / "keys", ("localhost",), ("east", "west"))
    port = free_port()
    same = {"model": "linear", "rounds": 2, "epochs": 1, "seed": 5, "method": "winnow:warm_up=1"}
    flags = [word for name, value in same.items() for word in (f"--{name}", value)]
    with Cast(tmp_path) as cast:
        link = ("--scene", "scene", "--port", port, "--sites", 2, "--tls", "keys")
        cast.start("serve", "serve", *link, *flags, "--secure-sums", "--out", "network")
        for name, clients in (("east", "0-2"), ("west", "3")):
            more = ("--scene", "scene", "--clients", clients, "--heartbeat", 1800, "--tls", f"keys/{name}")
            cast.start(name, "join", "--server", f"localhost:{port}", *more)
        for name in ("serve", "east", "west"):
            cast.ended(name)
        assert "can spoil a sum unseen" in cast.said("serve")
        assert "secure sums: yes, masks from the seed" in cast.said("east")
    fedwinnow.run(scene=tmp_path / "scene", out=tmp_path / "serial", participation=1, secure_sums=True, **same)
    state = (tmp_path / "network" / "state.safetensors").read_bytes()
    assert state == (tmp_path / "serial" / "state.safetensors").read_bytes()
    said = json.loads((tmp_path / "network" / "summary.json").read_text())["secure_sums"]
    assert said == {"masks_from": "the seed", "threshold": 0.66, "clipped": 0, "skipped_rounds": 0}
    ledger = json.loads((tmp_path / "sites" / "east" / "ledger.json").read_text())
    assert ledger["keys"]["masked"]["exposes"] == "masked"
    assert not {"weights", "samples", "statistics"} & ledger["keys"].keys()  # only what a simulation measures besides


def test_real_sites_over_tls(tmp_path: Path) -> None:
    """Hospitals with data and keys of their own; an encoder's columns are summed in the same way."""
    names = ("a", "b", "c")
    for number, name in enumerate((*names, "centre")):
        rows = [f"{i % 7 + number},{(i * 5) % 11},{'yes' if i % 3 else 'no'}" for i in range(40 + number)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["x,y,label", *rows]) + "\n")
    make_certificates(tmp_path / "keys", ("localhost",), names)
    port = free_port()
    with Cast(tmp_path) as cast:
        link = ("--data", "csv:path=centre.csv,label=label", "--port", port, "--sites", 3, "--tls", "keys")
        run = ("--rounds", 2, "--epochs", 1, "--encoder", "rows", "--secure-sums", "--out", "network")
        cast.start("serve", "serve", *link, *run)
        for name in names:
            more = ("--data", f"csv:path={name}.csv,label=label", "--heartbeat", 1800, "--tls", f"keys/{name}")
            cast.start(name, "join", "--server", f"localhost:{port}", *more, "--allow-exposure", "masked", "--yes")
        for name in ("serve", *names):
            cast.ended(name)
        assert "secure sums: yes, masks from the operating system" in cast.said("a")
        assert "encoder's columns over its samples, once, masked" in cast.said("a")
    said = json.loads((tmp_path / "network" / "summary.json").read_text())
    assert said["secure_sums"]["masks_from"] == "the operating system"
    rows = [json.loads(line) for line in (tmp_path / "network" / "rounds.jsonl").read_text().splitlines()]
    assert [row["participants"] for row in rows] == [[0, 1, 2], [0, 1, 2]]
    assert not any(row["dropped"] for row in rows)
    for name in names:
        ledger = json.loads((tmp_path / "sites" / name / "ledger.json").read_text())
        assert {line["exposes"] for line in ledger["keys"].values()} == {"masked"}
