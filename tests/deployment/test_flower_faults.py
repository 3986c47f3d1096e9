"""What goes wrong on a network, each with real processes: nothing hangs, and each side says what happened."""

from __future__ import annotations

import json
import os
import signal
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fedwinnow
from fedwinnow.scene.scene import Scene
from over_network import Cast, free_port

pytest.importorskip("flwr", reason="the extra 'flower' is not installed: pip install '.[flower]'")

from fedwinnow.deployment.certificates import make_certificates

SITES = ("site-a", "site-b", "site-c")
SETTINGS = {"model": "mlp:hidden=16", "epochs": 1, "seed": 1}
PATIENT = 1800  # seconds of a heartbeat: no site is lost because the machine is busy
ENDLESS = 100_000  # rounds: the test ends such a run when it has seen what it waits for


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    make_certificates(folder / "ours", ("localhost", "127.0.0.1"), SITES)
    make_certificates(folder / "others", ("localhost", "127.0.0.1"), ("rogue",))
    (folder / "rogue").mkdir()  # it has got hold of our authority's certificate, which is no secret
    (folder / "rogue" / "ca.crt").write_bytes((folder / "ours" / "ca.crt").read_bytes())
    (folder / "rogue" / "site.key").write_bytes((folder / "others" / "rogue" / "site.key").read_bytes())
    return folder


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scene")
    Scene.make("digits:train=120", clients=3, noise="constant:rate=0.3", seed=1).save(folder)
    return folder


class Trial:
    """A coordinator and sites of a small scene, one client each."""

    def __init__(self, cast: Cast, keys: Path, scene: Path) -> None:
        self.cast, self.keys, self.scene, self.port = cast, keys, scene, free_port()

    def serve(self, *more: Any, name: str = "serve", sites: int = 3, tamper: str | None = None) -> None:
        flags = [word for key, value in SETTINGS.items() for word in (f"--{key}", value)]
        self.cast.start(
            *(name, "serve", "--scene", self.scene, *flags, "--sites", sites, "--tls", self.keys / "ours"),
            *("--port", self.port, "--out", "run", *more),
            tamper=tamper,
        )

    def join(self, site: str, *more: Any, name: str | None = None, tamper: str | None = None) -> None:
        self.cast.start(
            *(name or site, "join", "--server", f"localhost:{self.port}", "--tls", self.keys / "ours" / site),
            *("--scene", self.scene, "--clients", SITES.index(site), "--heartbeat", PATIENT, *more),
            tamper=tamper,
        )

    def rounds(self) -> list[dict[str, Any]]:
        path = self.cast.folder / "run" / "rounds.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def wait_for_round(self, what: str, **wanted: bool) -> None:
        """Wait for a round in which a client was dropped or not."""
        number = len(self.rounds())
        self.cast.wait_until(
            lambda: any(
                all((client.replace("_", "-") in row["dropped"]) == dropped for client, dropped in wanted.items())
                for row in self.rounds()[number:]
            ),
            what,
            "serve",
        )

    def received(self) -> int:
        """How many answers the coordinator has, where it writes that down."""
        return len((self.cast.folder / "received").read_text().splitlines())

    def last_answer(self, site: str) -> int:
        """The round of a site's last reply, by its own ledger."""
        path = self.cast.folder / "sites" / site / "ledger.jsonl"
        lines = [json.loads(text) for text in path.read_text().splitlines(keepends=True) if text.endswith("\n")]
        return next(int(line["round"]) for line in reversed(lines) if "round" in line)

    def stop_within_a_round(self, site: str) -> None:
        """Let a site stand still, and wait until a round waits for it and for nobody else."""
        self.signal(site, signal.SIGSTOP)
        others = [other for other in SITES if other != site]
        self.cast.wait_until(
            lambda: all(self.last_answer(other) == len(self.rounds()) + 1 for other in others),
            f"a round that waits for {site}",
            "serve",
        )

    def signal(self, name: str, number: int) -> None:
        process = self.cast.processes[name].pid
        assert process is not None
        os.kill(process, number)


@pytest.fixture
def trial(tmp_path: Path, keys: Path, scene: Path) -> Iterator[Trial]:
    with Cast(tmp_path) as cast:
        yield Trial(cast, keys, scene)


def test_a_site_killed_within_a_round_is_left_out_and_comes_back_with_what_it_remembers(trial: Trial) -> None:
    trial.serve("--method", "fedrn", "--rounds", ENDLESS)
    for site in SITES:
        trial.join(site, *(("--heartbeat", 10) if site == "site-b" else ()))  # soon missed
    trial.wait_for_round("a round of all", client_0=False, client_1=False, client_2=False)
    trial.stop_within_a_round("site-b")
    trial.cast.kill("site-b")
    trial.wait_for_round("a round without site-b", client_0=False, client_1=True, client_2=False)
    assert "lost" in next(row["dropped"]["client-1"] for row in trial.rounds() if row["dropped"])
    trial.join("site-b", name="site-b-again")
    trial.wait_for_round("a round with site-b again", client_0=False, client_1=False, client_2=False)


def test_a_coordinator_that_was_killed_goes_on_where_it_was(trial: Trial, tmp_path: Path) -> None:
    trial.serve("--method", "fedrn", "--rounds", 6)
    for site in SITES:
        trial.join(site)
    trial.wait_for_round("the first round", client_1=False)
    trial.stop_within_a_round("site-b")
    trial.cast.kill("serve")
    trial.serve("--method", "fedrn", "--rounds", 6, "--resume", name="serve-again")
    trial.signal("site-b", signal.SIGCONT)
    for name in ("serve-again", *SITES):
        trial.cast.ended(name)
    assert "continuing after round" in trial.cast.said("serve-again")
    fedwinnow.run(scene=trial.scene, method="fedrn", rounds=6, participation=1, out=tmp_path / "serial", **SETTINGS)
    state = (tmp_path / "run" / "state.safetensors").read_bytes()
    assert state == (tmp_path / "serial" / "state.safetensors").read_bytes()


def test_a_slow_site_is_left_out_after_the_timeout_until_it_is_fast_again(trial: Trial) -> None:
    """The coordinator's clock moves when the test moves it: after the others' answers have come."""
    folder = trial.cast.folder
    trial.serve("--rounds", ENDLESS, "--timeout", 700, tamper="clock")
    for site in SITES:
        trial.join(site, tamper="slow" if site == "site-c" else None)
    trial.wait_for_round("a round of all", client_0=False, client_1=False, client_2=False)
    (folder / "hold").touch()
    trial.cast.wait_until((folder / "held").exists, "a question that site-c holds back", "serve")
    trial.cast.wait_until(
        lambda: trial.received() == 3 * len(trial.rounds()) + 2, "the answers of the two others", "serve"
    )
    (folder / "later").write_text("701")
    (folder / "later").replace(folder / "clock")
    trial.wait_for_round("a round without site-c", client_0=False, client_1=False, client_2=True)
    (why,) = [row["dropped"] for row in trial.rounds() if row["dropped"]]
    assert why == {"client-2": "no reply within 700 seconds"}
    (folder / "hold").unlink()
    trial.wait_for_round("a round with site-c again", client_0=False, client_1=False, client_2=False)


def test_too_few_sites_end_the_run_and_the_operator_sees_why(trial: Trial) -> None:
    trial.serve("--rounds", 2, "--quorum", 1)
    for site in SITES:
        trial.join(site, tamper="nan" if site == "site-b" else None)
    trial.cast.ended("serve", code=4)
    assert "only 2 of 3 clients answered" in trial.cast.said("serve")


def test_a_model_that_is_not_a_number_or_has_another_shape_is_left_out(trial: Trial) -> None:
    trial.serve("--rounds", 1, "--quorum", 0.3)
    trial.join("site-a")
    trial.join("site-b", tamper="nan")
    trial.join("site-c", tamper="shape")
    trial.cast.ended("serve")
    (row,) = trial.rounds()
    assert row["participants"] == [0]
    assert "not finite" in row["dropped"]["client-1"]
    assert "round 1: client-1 was left out: 'weights' in its reply is not finite" in trial.cast.said("serve")
    assert "has the shape" in row["dropped"]["client-2"]


@pytest.mark.slow
def test_a_site_that_dies_while_it_sends_is_left_out(trial: Trial) -> None:
    trial.serve("--rounds", 2, tamper="gives up")
    for site in SITES:
        # Its heartbeat is short, so that it is missed in the second round.
        died = site == "site-b"
        trial.join(site, *(("--heartbeat", 10) if died else ()), tamper="dies" if died else None)
    trial.cast.ended("site-b", code=9)
    trial.cast.ended("serve")
    assert [row["participants"] for row in trial.rounds()] == [[0, 2], [0, 2]]
    assert "client-1: not told that the run is over" in trial.cast.said("serve")


def test_strangers_are_refused_and_both_sides_say_why(trial: Trial, keys: Path) -> None:
    trial.serve("--rounds", 1)
    trial.cast.wait_for("serve", "listening")
    flags = ("--scene", trial.scene, "--clients", 0, "--patience", 3, "--server", f"localhost:{trial.port}")
    trial.cast.start("rogue", "join", *flags, "--tls", keys / "rogue")
    trial.cast.start("plain", "join", *flags, "--insecure")
    trial.cast.start("wary", "join", *flags, "--tls", keys / "others" / "rogue", "--name", "wary")
    trial.cast.ended("rogue", code=4)
    assert "does not know this site's key" in trial.cast.said("rogue")
    trial.cast.wait_for("serve", "was refused (no key that is known here")
    trial.cast.ended("plain", code=4)
    assert "a coordinator with --tls does not understand plain text" in trial.cast.said("plain")
    trial.cast.ended("wary", code=2)
    assert "is not signed by this site's ca.crt" in trial.cast.said("wary")
    trusting = ssl.create_default_context(cafile=str(keys / "ours" / "ca.crt"))
    for path in ("/v1/control/list-runs", "/v1/runtime/pull-messages", "/docs"):
        with pytest.raises(urllib.error.HTTPError) as refusal:
            urllib.request.urlopen(f"https://localhost:{trial.port}{path}", b"", 600, context=trusting)
        assert refusal.value.code == 404
    trial.cast.wait_for("serve", "a request for '/docs' was refused")
    trial.cast.wait_for("serve", "0 of 3 sites are there: none yet")


@pytest.mark.slow
def test_a_model_of_45_megabytes(trial: Trial, tmp_path: Path) -> None:
    Scene.make("digits:train=60", clients=1).save(tmp_path / "one")
    trial.scene, model = tmp_path / "one", "mlp:hidden=3330,layers=2"
    trial.serve("--model", model, "--rounds", 1, sites=1)
    trial.join("site-a")
    trial.cast.ended("serve")
    trial.cast.ended("site-a")
    assert trial.rounds()[0]["bytes_up"] > 45e6
    fedwinnow.run(scene=trial.scene, rounds=1, out=tmp_path / "serial", **SETTINGS | {"model": model})
    state = (tmp_path / "run" / "state.safetensors").read_bytes()
    assert state == (tmp_path / "serial" / "state.safetensors").read_bytes()
