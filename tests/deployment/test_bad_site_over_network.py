"""A bad site, and strangers at the port, during a run over TLS with processes of their own."""

from __future__ import annotations

import contextlib
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from over_network import Cast, free_port

pytest.importorskip("flwr", reason="the extra 'flower' is not installed: pip install 'fedwinnow[flower]'")

from fedwinnow.deployment.certificates import make_certificates

SITES = ("site-a", "site-b", "site-c")
ENDLESS = 1000  # as many as the default policy of a site allows; nobody waits for the last


class Trial:
    """A coordinator and three sites with data of their own."""

    def __init__(self, cast: Cast, keys: Path) -> None:
        self.cast, self.keys, self.port = cast, keys, free_port()

    def serve(self, *more: Any) -> None:
        flags = ("--model", "linear", "--epochs", 1, "--tls", self.keys, "--port", self.port, "--out", "run")
        self.cast.start("serve", "serve", "--data", "digits:train=60", "--sites", 3, *flags, *more)

    def join(self, site: str, tamper: str | None = None) -> None:
        flags = ("--server", f"localhost:{self.port}", "--tls", self.keys / site, "--heartbeat", 1800, "--yes")
        self.cast.start(site, "join", "--data", "digits:train=60", *flags, tamper=tamper)

    def rows(self) -> list[dict[str, Any]]:
        path = self.cast.folder / "run" / "rounds.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def rounds_go_on(self) -> None:
        """Wait for further rounds with every site."""
        number = len(self.rows())
        self.cast.wait_until(
            lambda: any(len(row["participants"]) == len(SITES) for row in self.rows()[number + 2 :]), "rounds", "serve"
        )

    def memory(self) -> int:
        """The most memory that the coordinator has had so far, in MB."""
        text = Path(f"/proc/{self.cast.processes['serve'].pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+)", text)
        assert found is not None
        return int(found[1]) // 1024


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    make_certificates(tmp_path / "certs", ("localhost", "127.0.0.1"), SITES)
    with Cast(tmp_path) as cast:
        yield Trial(cast, tmp_path / "certs")


def test_a_site_whose_replies_break_the_rules_is_out_after_three_and_the_others_finish(trial: Trial) -> None:
    trial.serve("--rounds", 5, "--quorum", 0.6)
    for site in SITES:
        trial.join(site, tamper="huge" if site == "site-b" else None)
    for name in ("serve", *SITES):
        trial.cast.ended(name)
    rows = trial.rows()
    assert [list(row["dropped"]) for row in rows] == [["site-b"]] * 3 + [[]] * 2
    assert [row.get("ended", []) for row in rows] == [[], [], ["site-b"], [], []]
    assert [row["participants"] for row in rows] == [[0, 2]] * 5
    said = trial.cast.said("serve")
    assert "round 1: site-b was left out: 'weights' in its reply has values up to 3e+38" in said
    assert "site-b: its part in this run is over, because 3 of its replies broke the rules" in said
    assert "Traceback" not in said
    state = load_file(trial.cast.folder / "run" / "state.safetensors")
    assert all(bool(value.isfinite().all()) for value in state.values())


@pytest.mark.slow
def test_a_thousand_silent_connections_a_huge_body_and_half_headers_do_not_stop_a_run(trial: Trial) -> None:
    trial.serve("--rounds", ENDLESS)
    for site in SITES:
        trial.join(site)
    trial.rounds_go_on()
    before, opened = trial.memory(), list[socket.socket]()
    with contextlib.ExitStack() as stack:
        for number in range(1000):
            with contextlib.suppress(OSError):  # refused or ended is fine
                one = stack.enter_context(socket.create_connection(("127.0.0.1", trial.port), timeout=30))
                opened.append(one)
                if number % 3 == 1:
                    one.sendall(b"\x16\x03\x01")  # the beginning of TLS
        trial.rounds_go_on()
    post_600_mb(trial.port, trial.cast.folder / "certs" / "site-a" / "ca.crt")
    trial.rounds_go_on()
    half_headers(trial.port, trial.cast.folder / "certs" / "site-a" / "ca.crt", 100)
    trial.rounds_go_on()
    grown = trial.memory() - before
    print(json.dumps({"connections": len(opened), "memory_before_mb": before, "grown_mb": grown}))
    assert len(opened) > 900
    assert grown < 150
    assert not any(row["dropped"] for row in trial.rows())


def over_tls(port: int, authority: Path) -> Any:
    import ssl

    context = ssl.create_default_context(cafile=str(authority))
    return context.wrap_socket(socket.create_connection(("localhost", port), timeout=60), server_hostname="localhost")


def post_600_mb(port: int, authority: Path) -> None:
    """Once with a stated length and once in pieces; both are ended long before."""
    head = "POST /v1/fleet/push-object HTTP/1.1\r\nHost: x\r\nContent-Type: application/protobuf\r\n"
    for length in (f"Content-Length: {600 * 2**20}\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n"):
        piece, sent = b"x" * 2**20, 0
        framed = piece if "Length" in length else b"100000\r\n" + piece + b"\r\n"
        with over_tls(port, authority) as one, contextlib.suppress(OSError):
            one.sendall((head + length).encode())
            for _ in range(600):
                one.sendall(framed)
                sent += len(piece)
        assert sent < 600 * 2**20


def half_headers(port: int, authority: Path, count: int) -> None:
    """Headers that do not end."""
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            with contextlib.suppress(OSError):
                one = stack.enter_context(over_tls(port, authority))
                one.sendall(b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: ")
