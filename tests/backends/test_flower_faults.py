"""What goes wrong on a network, each with real processes: nothing hangs, and each side says what happened."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from fedwinnow.scene.scene import Scene
from over_network import Cast, free_port

pytest.importorskip("flwr", reason="the extra 'flower' is not installed: pip install 'fedwinnow[flower]'")

from fedwinnow.network.keys import make_certificates

SITES = ("site-a", "site-b", "site-c")
LONG = 60.0  # seconds: a lost site is noticed after two heartbeats of ten


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    make_certificates(folder / "ours", ("localhost", "127.0.0.1"), SITES)
    make_certificates(folder / "others", ("localhost", "127.0.0.1"), ("rogue",))
    return folder


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scene")
    Scene.make("digits:train=240", clients=3, noise="constant:rate=0.3", seed=1).save(folder)
    return folder


class Stage:
    """A coordinator and sites of a small scene."""

    def __init__(self, cast: Cast, folder: Path, keys: Path, scene: Path) -> None:
        self.cast, self.folder, self.keys, self.scene, self.port = cast, folder, keys, scene, free_port()

    def serve(self, *more: Any, name: str = "serve", sites: int = 3) -> None:
        self.cast.start(
            *(name, "serve", "--scene", self.scene, "--seed", 1, "--sites", sites, "--tls", self.keys / "ours"),
            *("--port", self.port, "--out", self.folder / "run", *more),
        )

    def join(self, site: str, *more: Any, name: str | None = None) -> None:
        number = SITES.index(site)
        self.cast.start(
            *(name or site, "join", "--server", f"127.0.0.1:{self.port}", "--tls", self.keys / "ours" / site),
            *("--scene", self.scene, "--clients", number, "--out", self.folder / site, *more),
        )

    def rounds(self) -> list[dict[str, Any]]:
        path = self.folder / "run" / "rounds.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def wait_for_round(self, number: int) -> None:
        self.cast.wait_until(lambda: len(self.rounds()) >= number, f"round {number}", "serve")


@pytest.fixture
def stage(tmp_path: Path, keys: Path, scene: Path) -> Any:
    with Cast(tmp_path / "logs") as cast:
        yield Stage(cast, tmp_path, keys, scene)


def test_a_killed_site_is_left_out_and_comes_back(stage: Stage) -> None:
    stage.serve("--rounds", 60, "--epochs", 3, "--quorum", 0.5)
    for site in SITES:
        stage.join(site)
    stage.wait_for_round(2)
    stage.cast.processes["site-b"].kill()
    stage.cast.processes["site-b"].wait()
    stage.join("site-b", name="site-b-again")
    stage.cast.ended("serve")
    dropped = [row["round"] for row in stage.rounds() if "client-1" in row["dropped"]]
    back = [row["round"] for row in stage.rounds() if 1 in row["participants"] and row["round"] > max(dropped)]
    assert dropped
    assert back
    stage.cast.ended("site-b-again")


def test_a_coordinator_that_was_killed_goes_on(stage: Stage) -> None:
    stage.serve("--rounds", 8, "--epochs", 3)
    for site in SITES:
        stage.join(site)
    stage.wait_for_round(2)
    stage.cast.processes["serve"].send_signal(signal.SIGKILL)
    stage.cast.processes["serve"].wait()
    stage.serve("--rounds", 8, "--epochs", 3, "--resume", name="serve-again")
    for name in ("serve-again", *SITES):
        stage.cast.ended(name)
    assert [row["round"] for row in stage.rounds()] == list(range(1, 9))


def test_a_site_without_a_known_key_is_refused_and_the_operator_sees_it(stage: Stage, keys: Path) -> None:
    stage.serve("--rounds", 1, "--patience", LONG)
    stage.cast.wait_for("serve", "listening")
    rogue = keys / "rogue-with-our-authority"
    rogue.mkdir(exist_ok=True)
    (rogue / "ca.crt").write_bytes((keys / "ours" / "ca.crt").read_bytes())
    (rogue / "site.key").write_bytes((keys / "others" / "rogue" / "site.key").read_bytes())
    flags = ("--scene", stage.scene, "--clients", 0, "--out", stage.folder / "rogue", "--patience", 5)
    stage.cast.start("rogue", "join", "--server", f"127.0.0.1:{stage.port}", "--tls", rogue, *flags)
    stage.cast.ended("rogue", code=4)
    assert "does not know this site's key" in stage.cast.said("rogue")
    assert "was refused" in stage.cast.said("serve")


def test_a_plain_text_site_is_told_about_tls(stage: Stage) -> None:
    stage.serve("--rounds", 1, "--patience", LONG)
    stage.cast.wait_for("serve", "listening")
    flags = ("--insecure", "--scene", stage.scene, "--out", stage.folder / "plain", "--patience", 5)
    stage.cast.start("plain", "join", "--server", f"127.0.0.1:{stage.port}", *flags)
    stage.cast.ended("plain", code=4)
    assert "--tls" in stage.cast.said("plain")


def test_a_coordinator_of_another_authority_is_not_trusted(stage: Stage, keys: Path) -> None:
    stage.serve("--rounds", 1, "--patience", LONG)
    stage.cast.wait_for("serve", "listening")
    flags = ("--scene", stage.scene, "--clients", 0, "--out", stage.folder / "wary")
    stage.cast.start("wary", "join", "--server", f"127.0.0.1:{stage.port}", "--tls", keys / "others" / "rogue", *flags)
    stage.cast.ended("wary", code=2)
    assert "not signed by" in stage.cast.said("wary")


def test_a_slow_site_is_left_out_after_the_timeout(stage: Stage) -> None:
    stage.serve("--rounds", 2, "--timeout", 5, "--quorum", 0.5)
    for site in SITES:
        stage.join(site)
    stage.cast.wait_for("serve", "3 of 3 sites")
    stage.cast.processes["site-c"].send_signal(signal.SIGSTOP)
    stage.cast.ended("serve")
    assert any("client-2" in row["dropped"] for row in stage.rounds())
