"""Whoever reaches the coordinator's port: silent, slow, oversized and too many connections; its sites go on."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import socket
import ssl
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from over_network import free_port

pytest.importorskip("flwr", reason="the extra 'flower' is not installed: pip install 'fedwinnow[flower]'")

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.proto import fleet_pb2 as fleet

from fedwinnow.deployment import flower_visit
from fedwinnow.deployment.certificates import make_certificates
from fedwinnow.deployment.flower_link import Link, parts_of
from fedwinnow.deployment.flower_private import public_key_to_bytes
from fedwinnow.deployment.flower_visit import JoinRefused, Unreachable, Visit, join
from fedwinnow.deployment.front import TICK, Body, FleetOnly, Gate, PortLimits, answer
from fedwinnow.deployment.keys import ServerFiles, SiteFiles
from fedwinnow.deployment.policy import shipped

LOW = PortLimits(connections=24, per_address=20, body=2**20)
WAIT = 150.0  # seconds; nothing may take longer, or it hangs (seeded faults have 300)
LOOK = 0.02


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    make_certificates(folder, ("localhost", "127.0.0.1"), ("site-a", "site-b"))
    return folder


class Trial:
    """A link with low limits, and what it says. Time passes for its callers only when the test says so."""

    def __init__(self, keys: Path | None) -> None:
        self.keys, self.said, self.port, self.time = keys, list[str](), free_port(), 0.0
        self.link = Link("127.0.0.1", self.port, ServerFiles(keys) if keys else None, 60.0, self.said.append, LOW)
        self.link.gate.now = lambda: self.time  # type: ignore[method-assign]
        self.opened: list[socket.socket] = []

    def connect(self) -> socket.socket:
        """A connection that says nothing."""
        one = socket.create_connection(("127.0.0.1", self.port), timeout=WAIT)
        self.opened.append(one)
        return one

    def passes(self, happened: Callable[[], bool]) -> bool:
        """Let the callers' time pass until this happens."""
        until = time.monotonic() + WAIT
        while not happened():
            if time.monotonic() > until:
                return False
            self.time += 0.5
            time.sleep(LOOK)
        return True

    def ends(self, one: socket.socket) -> bool:
        """Whether the coordinator ends a connection without a word as time passes."""
        return self.passes(lambda: gone(one))

    def site(self, name: str = "site-a") -> Visit:
        """A site with a key of its own."""
        return Visit(f"localhost:{self.port}", SiteFiles(self.keys / name) if self.keys else None, 300)

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


def gone(one: socket.socket) -> bool:
    """Whether the coordinator has ended a connection without a word."""
    one.setblocking(False)
    try:
        return not one.recv(4096)
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def look_around() -> None:
    """Give the coordinator the time to do what it should not do."""
    time.sleep(3 * TICK)


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
    one = plain.connect()
    plain.time += LOW.headers - 1
    look_around()
    assert not gone(one)
    assert plain.ends(one)


def test_a_tls_handshake_that_does_not_go_on_is_ended(protected: Trial) -> None:
    assert protected.ends(protected.connect())  # not even begun
    half = protected.connect()
    half.sendall(b"\x16\x03\x01\x02\x00\x01\x00")
    assert protected.ends(half)


def test_headers_that_come_drop_by_drop_are_ended(plain: Trial) -> None:
    one, drops = plain.connect(), iter(b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: " + b"x" * 10**6)

    def refused() -> bool:
        try:
            one.sendall(bytes([next(drops)]))
        except OSError:
            return True
        return False

    assert plain.passes(refused)


def test_the_second_request_of_a_connection_has_to_come_in_time_too(plain: Trial) -> None:
    one = plain.connect()
    one.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    assert status(one) == 200
    plain.time += 5 * LOW.headers  # nothing has to come between two requests
    look_around()
    one.sendall(b"GET /health HTTP/1.1\r\nHo")
    assert plain.ends(one)


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
    one.setblocking(False)
    said = bytearray()

    def answered() -> bool:
        with contextlib.suppress(BlockingIOError):
            said.extend(one.recv(4096))
        return bool(said)

    plain.time += LOW.body_start - 1
    look_around()
    assert not answered()
    assert plain.passes(answered)
    assert said.split(b" ")[1] == b"408"


def signed_by(keys: Path, site: str, seconds: float = 0.0) -> dict[str, str]:
    """The headers of a site's request, so many seconds from now."""
    private: Any = load_ssh_private_key((keys / site / "site.key").read_bytes(), None)
    when = (datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds)).isoformat()
    found = (public_key_to_bytes(private.public_key()), private.sign(when.encode(), ec.ECDSA(hashes.SHA256())))
    public, signature = (base64.b64encode(each).decode() for each in found)
    return {"flwr-public-key": public, "flwr-timestamp": when, "flwr-signature": signature}


def answered(trial: Trial, length: int | None, headers: dict[str, str], body: bytes = b"") -> int:
    """The status of the answer to a request; most are refused before the body comes."""
    assert trial.keys is not None
    trusting = ssl.create_default_context(cafile=str(trial.keys / "ca.crt"))
    with trusting.wrap_socket(trial.connect(), server_hostname="localhost") as one:
        lines = [f"{name}: {value}" for name, value in headers.items()]
        if length is None:
            lines.append("Transfer-Encoding: chunked")
        with contextlib.suppress(OSError):
            one.sendall(request(length, *lines) + body)
        return status(one)


def test_a_long_body_needs_the_signature_of_a_known_key_before_any_of_it_is_read(
    protected: Trial, keys: Path, tmp_path: Path
) -> None:
    make_certificates(tmp_path / "others", ("localhost",), ("site-a",))
    mine, long = signed_by(keys, "site-a"), LOW.unsigned + 1
    other = signed_by(keys, "site-b")
    for headers in (
        {},
        signed_by(tmp_path / "others", "site-a"),  # a key that is not known here
        mine | {"flwr-signature": other["flwr-signature"]},
        mine | {"flwr-timestamp": other["flwr-timestamp"]},
        mine | {"flwr-public-key": "no key", "flwr-signature": "\x80"},
        mine | {"flwr-timestamp": "yesterday"},
        signed_by(keys, "site-a", -3600),
        signed_by(keys, "site-a", 3600),
    ):
        assert answered(protected, long, headers) == 401, headers
        piece = b"%x\r\n" % long + b"x" * long + b"\r\n"
        assert answered(protected, None, headers, piece) == 401, headers  # it does not say how long it will be
    assert any("no key that is known here has signed it" in line for line in protected.said)
    nonsense = b"x" * long  # read, and found to be no message
    assert answered(protected, long, mine, nonsense) not in (401, 408, 413)
    assert answered(protected, LOW.unsigned, {}, b"x" * LOW.unsigned) not in (408, 413)  # Flower refuses it by itself
    assert answered(protected, LOW.body + 1, mine) == 413


def test_nobody_is_late_while_the_coordinator_itself_stands_still() -> None:
    """On a busy machine, its loop may run again only after everybody's time is over; what has come is then read."""

    async def story() -> tuple[float, Any]:
        loop, pieces, stood = asyncio.get_running_loop(), asyncio.Queue[Any](), 0.0
        usual = loop.time
        loop.time = lambda: usual() + stood  # type: ignore[method-assign]
        gate = Gate(PortLimits())
        gate.callers["x", 1] = types.SimpleNamespace(until=None)  # type: ignore[assignment]
        gate.look_again()
        waiting = asyncio.ensure_future(Body(pieces.get, gate, 1).receive())
        await asyncio.sleep(0)
        stood = 3600.0  # nothing ran for an hour
        while gate.now() == 0:
            await asyncio.sleep(0)
        passed = gate.now()
        pieces.put_nowait({"body": b"x", "more_body": False})
        return passed, await waiting

    passed, message = asyncio.run(story())
    assert passed < 1
    assert message == {"body": b"x", "more_body": False}


def test_a_site_goes_on_while_its_address_is_full_of_silent_connections(protected: Trial) -> None:
    visit, late = protected.site(), protected.site("site-b")
    visit.enter()
    for _ in range(200):
        protected.connect()
    assert protected.beats(visit)
    late.enter()
    assert protected.beats(late)
    assert protected.beats(visit)
    assert len(protected.link.gate.callers) <= LOW.per_address
    assert len(protected.link.gate.open) <= LOW.connections + 32


@pytest.mark.parametrize("code", [408, 429, 502, 503, 504])
def test_a_site_tries_again_what_may_pass(protected: Trial, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """A coordinator, or a proxy before it, that says: not now."""
    let, refused = FleetOnly.passed, list[str]()

    async def passed(self: FleetOnly, scope: Any, body: Body, send: Any, who: str) -> None:
        if len(refused) < most:
            refused.append(scope["path"])
            return await answer(send, code)
        return await let(self, scope, body, send, who)

    monkeypatch.setattr(FleetOnly, "passed", passed)
    monkeypatch.setattr(flower_visit, "SENT_AGAIN", (LOOK, LOOK))
    most, visit = 2, protected.site()
    visit.enter()  # the third time it is let in
    assert protected.beats(visit)
    assert refused == ["/v1/fleet/activate-node"] * 2
    refused, most = [], 10**6
    with pytest.raises(Unreachable, match=f"too busy at the moment .{code}.") as problem:
        protected.beats(visit)
    assert not isinstance(problem.value, JoinRefused)
    assert refused == ["/v1/fleet/pull-messages"] * 3
    refused, most = [], 0
    assert protected.beats(visit)


def test_a_site_that_is_told_to_come_later_waits_for_the_coordinator(
    protected: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits as after a broken connection, says so once, and is there when the coordinator has time again."""
    said, let, refused = list[str](), FleetOnly.passed, list[str]()
    site = types.SimpleNamespace(
        finished=False, failure=None, name="site-a", say=said.append, consent=types.SimpleNamespace(policy=shipped())
    )

    async def passed(self: FleetOnly, scope: Any, body: Body, send: Any, who: str) -> None:
        if len(refused) < 7:
            refused.append(scope["path"])
            return await answer(send, 503)
        site.finished |= scope["path"].endswith("pull-messages")
        return await let(self, scope, body, send, who)

    monkeypatch.setattr(FleetOnly, "passed", passed)
    monkeypatch.setattr(flower_visit, "SENT_AGAIN", (LOOK,))
    join(site, f"localhost:{protected.port}", SiteFiles(protected.keys / "site-a"), WAIT, 300)  # type: ignore[arg-type]
    waiting, connected = said
    assert waiting == "waiting: the coordinator is too busy at the moment (503)"
    assert connected.startswith("connected")


def test_garbage_and_plain_text_at_the_tls_port_hurt_nobody(
    protected: Trial, capfd: pytest.CaptureFixture[str]
) -> None:
    for text in (b"\x00" * 100, b"GET / HTTP/1.1\r\n\r\n", b"\x1b[31m" * 50):
        protected.connect().sendall(text)
    trusting = ssl.create_default_context()
    with pytest.raises(ssl.SSLError):
        trusting.wrap_socket(protected.connect(), server_hostname="localhost")
    visit = protected.site()
    visit.enter()
    assert protected.beats(visit)
    assert "\x1b" not in "".join((*protected.said, *capfd.readouterr()))


def test_a_reply_in_too_many_parts_is_refused(protected: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    visit = protected.site()
    visit.enter()
    protected.link.agree(0)
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
