"""Whoever reaches the coordinator's port: silent, slow, oversized and too many connections; its sites go on."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from over_network import free_port

pytest.importorskip("flwr", reason="the extra 'flower' is not installed: pip install 'fedwinnow[flower]'")

from flwr.proto import fleet_pb2 as fleet

from fedwinnow.deployment.certificates import make_certificates
from fedwinnow.deployment.flower_link import Link, parts_of
from fedwinnow.deployment.flower_visit import JoinRefused, Visit
from fedwinnow.deployment.front import PortLimits
from fedwinnow.deployment.keys import ServerFiles, SiteFiles

LOW = PortLimits(connections=24, per_address=20, handshake=0.6, headers=0.6, body=2**20, body_start=0.6, body_rate=1e9)
WAIT = 20.0  # seconds; whatever is to end has ended long before
# Where a real site takes part: a busy machine may keep it waiting for longer than LOW allows a stranger.
UNHURRIED = replace(LOW, handshake=WAIT, headers=WAIT, body_start=WAIT)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    make_certificates(folder, ("localhost", "127.0.0.1"), ("site-a", "site-b"))
    return folder


class Trial:
    """A link with low limits, and what it says."""

    def __init__(self, keys: Path | None, limits: PortLimits = LOW) -> None:
        self.keys, self.said, self.port = keys, list[str](), free_port()
        self.link = Link("127.0.0.1", self.port, ServerFiles(keys) if keys else None, 60.0, self.said.append, limits)
        self.opened: list[socket.socket] = []

    def connect(self) -> socket.socket:
        """A connection that says nothing."""
        one = socket.create_connection(("127.0.0.1", self.port), timeout=WAIT)
        self.opened.append(one)
        return one

    def site(self) -> Visit:
        """A site with a key of its own."""
        return Visit(f"localhost:{self.port}", SiteFiles(self.keys / "site-a") if self.keys else None, 300)

    def beats(self, visit: Visit) -> bool:
        """Whether the coordinator answers this site."""
        return visit.call("PullMessages", fleet.PullMessagesRequest(node=visit.node)) is not None

    def close(self) -> None:
        for one in self.opened:
            one.close()
        self.link.close()


@pytest.fixture
def plain() -> Iterator[Trial]:
    with contextlib.closing(Trial(None)) as trial:
        yield trial


@pytest.fixture
def protected(keys: Path) -> Iterator[Trial]:
    with contextlib.closing(Trial(keys)) as trial:
        yield trial


@pytest.fixture
def unhurried(keys: Path) -> Iterator[Trial]:
    with contextlib.closing(Trial(keys, UNHURRIED)) as trial:
        yield trial


def ended(one: socket.socket) -> bool:
    """Whether the coordinator ends a connection without a word."""
    one.settimeout(WAIT)
    try:
        while one.recv(4096):
            continue
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


def request(length: int | None, *headers: str) -> bytes:
    stated = [] if length is None else [f"Content-Length: {length}"]
    lines = [
        "POST /v1/fleet/push-object HTTP/1.1",
        "Host: x",
        "Content-Type: application/protobuf",
        *stated,
        *headers,
        "",
        "",
    ]
    return "\r\n".join(lines).encode()


def status(one: socket.socket) -> int:
    """The status of the answer."""
    one.settimeout(WAIT)
    return int(one.recv(4096).split(b" ")[1])


def test_a_connection_that_says_nothing_is_ended(plain: Trial) -> None:
    began = time.monotonic()
    assert ended(plain.connect())
    assert time.monotonic() - began < 10


def test_a_tls_handshake_that_does_not_go_on_is_ended(protected: Trial) -> None:
    assert ended(protected.connect())  # not even begun
    half = protected.connect()
    half.sendall(b"\x16\x03\x01\x02\x00\x01\x00")
    assert ended(half)


def test_headers_that_come_drop_by_drop_are_ended(plain: Trial) -> None:
    one = plain.connect()
    began = time.monotonic()
    with contextlib.suppress(OSError):
        for letter in b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: " + b"x" * 400:
            one.sendall(bytes([letter]))
            time.sleep(0.05)
    assert time.monotonic() - began < 10
    assert ended(one)


def test_the_second_request_of_a_connection_has_to_come_in_time_too(plain: Trial) -> None:
    one = plain.connect()
    one.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    one.recv(4096)
    one.sendall(b"GET /health HTTP/1.1\r\nHo")
    assert ended(one)


def test_a_body_that_is_too_long_is_refused_before_it_is_read(plain: Trial) -> None:
    one = plain.connect()
    one.sendall(request(600 * 2**20))
    assert status(one) == 413
    assert any("its body was too long" in line for line in plain.said)


def test_a_body_without_a_stated_length_is_counted(plain: Trial) -> None:
    one = plain.connect()
    one.sendall(request(None, "Transfer-Encoding: chunked"))
    with contextlib.suppress(OSError):
        for _ in range(3):
            one.sendall(b"80000\r\n" + b"x" * 0x80000 + b"\r\n")
    assert status(one) == 413


def test_a_body_that_does_not_come_is_given_up(plain: Trial) -> None:
    one = plain.connect()
    one.sendall(request(1000) + b"x")
    assert status(one) == 408


def test_a_site_goes_on_while_its_address_is_full_of_silent_connections(unhurried: Trial) -> None:
    visit = unhurried.site()
    visit.enter()
    for _ in range(200):
        unhurried.connect()
    assert unhurried.beats(visit)
    late = Visit(f"localhost:{unhurried.port}", SiteFiles(unhurried.keys / "site-b"), 300)  # type: ignore[operator]
    late.enter()
    assert unhurried.beats(late)
    assert unhurried.beats(visit)
    assert len(unhurried.link.gate.callers) <= LOW.per_address
    assert len(unhurried.link.gate.open) <= LOW.connections + 32


def test_garbage_and_plain_text_at_the_tls_port_hurt_nobody(
    unhurried: Trial, capfd: pytest.CaptureFixture[str]
) -> None:
    for text in (b"\x00" * 100, b"GET / HTTP/1.1\r\n\r\n", b"\x1b[31m" * 50):
        unhurried.connect().sendall(text)
    trusting = ssl.create_default_context()
    with pytest.raises(ssl.SSLError):
        trusting.wrap_socket(unhurried.connect(), server_hostname="localhost")
    visit = unhurried.site()
    visit.enter()
    assert unhurried.beats(visit)
    assert "\x1b" not in "".join((*unhurried.said, *capfd.readouterr()))


def test_a_reply_in_too_many_parts_is_refused(unhurried: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    visit = unhurried.site()
    visit.enter()
    unhurried.link.agree(0)
    request = fleet.PushMessagesRequest(node=visit.node)
    tree = request.message_object_trees.add(object_id="root")
    for number in range(parts_of(0)):
        tree.children.add(object_id=str(number))
    with pytest.raises(JoinRefused, match="413"):
        visit.call("PushMessages", request)


def test_the_parts_of_a_reply_follow_from_the_model() -> None:
    assert parts_of(0) == 256
    assert parts_of(1) == 256 + 8
    assert parts_of(44 * 10**6) == 256 + 8 * 9  # 44 MB are eight full parts and one more


def test_connections_follow_from_the_sites_and_from_the_files_that_may_be_open(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = PortLimits.of(30)
    assert (limits.connections, limits.per_address) == (12 * 30 + 64, 12 * 30 + 32)
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (256, 256))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, found: None)
    few = limits.suitable()
    assert (few.connections, few.per_address) == (96, 72)  # (256 - 64) / 2, and three quarters of that
