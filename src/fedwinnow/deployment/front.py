"""What stands in front of Flower's HTTP handling: limits for whoever talks to the coordinator's port.

Anybody who reaches the port can open connections and send bytes, with or without a key. So connections are counted, in
all and for each address, and one that has not shown a known key yet has to make room when there are too many; TLS,
headers and bodies have to come in time; a body may be as long as a site's requests are and no longer, and it is short
unless a known key has signed the request. The time is that in which this process ran: while it waits for its turn on a
busy machine, nobody becomes late.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from fedwinnow.errors import UsageError

AT_ONCE = 32  # connections that are taken before others get their turn
PER_SITE, STRANGERS = 12, 32  # connections
SPARE_FILES = 64  # that the coordinator needs for other things
TICK = 0.25  # seconds between two looks at who is late
TOO_LONG, TOO_SLOW, UNSIGNED = 413, 408, 401
WORDS = {
    TOO_LONG: "its body was too long",
    TOO_SLOW: "its body was slow",
    UNSIGNED: "its body was long, and no key that is known here has signed it",
}


@dataclass(frozen=True)
class PortLimits:
    """How much of the coordinator others may take."""

    connections: int = 424  # in all
    per_address: int = 392  # many sites may share one address
    handshake: float = 10.0  # seconds until TLS is agreed on
    headers: float = 10.0  # seconds until the headers of a request are complete
    body: int = 8 * 2**20  # bytes of a request; Flower sends tensors in pieces of 5 MiB
    unsigned: int = 2**14  # bytes of a request that no known key has signed: it is refused, whatever stands in it
    body_start: float = 30.0  # seconds for a body, and
    body_rate: float = 16e3  # so many bytes a second besides

    @classmethod
    def of(cls, sites: int) -> PortLimits:
        """The limits for so many sites, each with up to twelve connections while it sends a large model."""
        return cls(connections=PER_SITE * sites + 2 * STRANGERS, per_address=PER_SITE * sites + STRANGERS)

    def suitable(self) -> PortLimits:
        """These limits, lowered to what the operating system allows this process; it is asked for more first."""
        try:
            import resource
        except ImportError:  # Windows has no such limit
            return self
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = 2 * self.connections + SPARE_FILES
        if soft != resource.RLIM_INFINITY and soft < wanted:
            soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        room = self.connections if soft == resource.RLIM_INFINITY else max(8, (soft - SPARE_FILES) // 2)
        most = min(self.connections, room)
        return PortLimits(**{**vars(self), "connections": most, "per_address": min(self.per_address, most * 3 // 4)})


class Gate:
    """Who is connected; the listening sockets of a coordinator share one."""

    def __init__(self, limits: PortLimits) -> None:
        self.limits = limits
        self.callers: dict[tuple[str, int], Caller] = {}  # by address and port, the oldest first
        self.open: set[int] = set()  # also those that are being closed
        self.taken = 0  # since others had their turn
        self.clock = 0.0  # seconds that have passed for the callers
        self.looked: float | None = None  # the loop's time at the last look at who is late; None: nobody is there

    def listen(self, host: str, port: int) -> list[socket.socket]:
        """Sockets that listen at every address of this name."""
        found: list[socket.socket] = []
        try:
            places = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for family, kind, proto, _, address in dict.fromkeys(places):
                door = Door(family, kind, proto)
                found.append(door)
                door.gate = self
                if os.name == "posix":
                    door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    door.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                door.bind(address)
                door.setblocking(False)
        except (OSError, OverflowError, UnicodeError) as problem:
            for one in found:
                one.close()
            raise UsageError(
                f"--host {host} --port {port}: cannot listen; allowed: an address of this machine, and a port that no "
                f"other program uses ({getattr(problem, 'strerror', None) or problem})."
            ) from None
        return found

    def admit(self, plain: socket.socket, address: tuple[str, int]) -> Caller:
        """Take a connection; somebody unknown makes room for it, or it is refused."""
        if self.taken == 0:
            asyncio.get_running_loop().call_soon(self.rested)
        if self.looked is None:
            self.look_again()
        self.taken += 1
        if not self.has_room(address[0]):
            plain.close()
            raise ConnectionAbortedError("too many connections")
        caller = Caller(plain.family, plain.type, plain.proto, fileno=plain.detach())
        self.callers[address] = caller
        self.open.add(id(caller))
        caller.begin(self, address)
        return caller

    def rested(self) -> None:
        """The others have had their turn."""
        self.taken = 0

    def now(self) -> float:
        """The time of the callers: it stands still while this process does, so that nobody is late by our own fault."""
        return self.clock

    def look_again(self) -> None:
        """Look soon at who is late."""
        loop = asyncio.get_running_loop()
        self.looked = loop.time()
        loop.call_later(TICK, self.look)

    def look(self) -> None:
        """Let the time pass, and end the connections that are late."""
        assert self.looked is not None
        self.clock += min(asyncio.get_running_loop().time() - self.looked, 2 * TICK)
        now, self.looked = self.now(), None
        for caller in list(self.callers.values()):
            if caller.until is not None and caller.until <= now:
                caller.cut()
        if self.callers:
            self.look_again()

    def has_room(self, host: str) -> bool:
        """Whether one more connection of this address may come; the oldest unknown one is ended for it."""
        crowd = [one for one in self.callers.values() if one.address[0] == host]
        if len(crowd) < self.limits.per_address:
            crowd = list(self.callers.values())
            if len(crowd) < self.limits.connections:
                return True
        oldest = next((one for one in crowd if not one.known), None)
        if oldest is not None:
            oldest.cut()
        return oldest is not None

    def caller(self, client: Any) -> Caller | None:
        """The connection of a client, as HTTP names it."""
        return self.callers.get((str(client[0]), int(client[1]))) if client else None

    def close(self) -> None:
        """End all connections; also from another thread."""
        for caller in list(self.callers.values()):
            caller.shut()

    def protocol(self) -> type[asyncio.Protocol]:
        """The HTTP protocol whose headers have to come in time."""
        gate = self

        class Punctual(H11Protocol):
            def connection_made(self, transport: Any) -> None:
                super().connection_made(transport)
                self.caller = gate.caller(self.client)
                if self.caller is not None:
                    self.caller.within(gate.limits.headers)

            def data_received(self, data: bytes) -> None:
                super().data_received(data)
                if self.caller is None:
                    return
                if self.cycle is not None and not self.cycle.response_complete:
                    self.caller.forgive()
                elif self.caller.until is None:
                    self.caller.within(gate.limits.headers)

        return Punctual


class Caller(socket.socket):
    """One connection of somebody."""

    def begin(self, gate: Gate, address: tuple[str, int]) -> None:
        """The connection is taken: TLS, or the first request, has to follow in time."""
        self.gate, self.address = gate, address
        self.known = False  # whether a request of it was accepted
        self.until: float | None = None  # by when something must happen
        self.within(gate.limits.handshake)

    def within(self, seconds: float) -> None:
        """Something must happen within this time."""
        self.until = self.gate.now() + seconds

    def forgive(self) -> None:
        """It has happened."""
        self.until = None

    def cut(self) -> None:
        """End the connection; its transport closes it when it sees that."""
        self.forgive()
        self.gate.callers.pop(self.address, None)
        self.shut()

    def shut(self) -> None:
        """Neither side says anything more."""
        with contextlib.suppress(OSError):  # it has ended already
            self.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.forgive()
        if self.gate.callers.get(self.address) is self:
            del self.gate.callers[self.address]
        self.gate.open.discard(id(self))
        super().close()


class Door(socket.socket):
    """A listening socket, which lets in whom the gate admits."""

    gate: Gate

    def accept(self) -> tuple[socket.socket, Any]:
        if self.gate.taken >= AT_ONCE or len(self.gate.open) >= self.gate.limits.connections + AT_ONCE:
            raise BlockingIOError  # the loop comes back after it has closed what is to be closed
        plain, full = super().accept()
        return self.gate.admit(plain, (str(full[0]), int(full[1]))), full


class FleetOnly:
    """Lets requests to the sites' interface through that are short enough and come in time, and no others.

    A longer one has to be signed by a key that is known here, and is looked at before any of its body is read.
    """

    def __init__(
        self,
        app: Any,
        say: Callable[[str], None],
        gate: Gate,
        signed: Callable[[dict[bytes, bytes]], bool] | None = None,
    ) -> None:
        """`signed`: whether headers have the signature of a known key; None: there are no keys."""
        self.app, self.say, self.gate, self.signed = app, say, gate, signed

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        who = (scope.get("client") or ("somebody",))[0]
        if not scope["path"].startswith(("/v1/fleet/", "/health")):
            self.say(f"a request for {scope['path'][:80]!r} was refused: only sites may talk to this port")
            await answer(send, 404)
            return
        body = Body(receive, self.gate, length_of(scope), signed=self.may_be_long(scope))
        if body.problem == 0:
            await self.passed(scope, body, send, who)
        if body.problem:
            self.say(f"{who}: a request was refused: {WORDS[body.problem]}")
            if not body.answered:
                await answer(send, body.problem)

    def may_be_long(self, scope: Any) -> bool:
        """Whether the body of a request may be longer than that of a stranger; short ones need no look."""
        stated = length_of(scope)
        if self.signed is None or (stated is not None and stated <= self.gate.limits.unsigned):
            return True
        return self.signed(dict(scope["headers"]))

    async def passed(self, scope: Any, body: Body, send: Any, who: str) -> None:
        """Let Flower answer, unless the body turns out to be too long or too slow."""

        async def watched(message: Any) -> None:
            if body.problem:
                return
            body.answered = True
            if message["type"] == "http.response.start":
                message = message | {"headers": [*message.get("headers", ()), dated()]}
                caller = self.gate.caller(scope.get("client"))
                if message["status"] in (401, 403, 412):
                    self.say(f"{who} was refused (no key that is known here, or its last visit has not ended yet)")
                elif message["status"] < 400 and caller is not None and scope["path"].startswith("/v1/fleet/"):
                    caller.known = True
            await send(message)

        try:
            await self.app(scope, body.receive, watched)
        except Exception:
            if not body.problem:
                raise


class Body:
    """The body of one request, which must not be too long or come too slowly."""

    def __init__(self, receive: Any, gate: Gate, stated: int | None, *, signed: bool = True) -> None:
        self.source, self.gate, self.longest = receive, gate, gate.limits.body if signed else gate.limits.unsigned
        self.length, self.whole, self.answered = 0, False, False
        self.too_long = TOO_LONG if signed else UNSIGNED
        self.problem = self.too_long if stated is not None and stated > self.longest else 0
        expected = self.longest if stated is None else stated
        self.until = gate.now() + gate.limits.body_start + expected / gate.limits.body_rate

    async def receive(self) -> Any:
        """The next piece; where there is a problem, as if the client had left."""
        if self.whole:
            return await self.source()
        while not self.problem:
            if self.gate.now() >= self.until:
                self.problem = TOO_SLOW
                break
            with contextlib.suppress(TimeoutError):
                message = await asyncio.wait_for(self.source(), TICK)
                self.length += len(message.get("body", b""))
                self.whole = not message.get("more_body", False)
                if self.length <= self.longest:
                    return message
                self.problem, self.whole = self.too_long, False
        return {"type": "http.disconnect"}


def length_of(scope: Any) -> int | None:
    """The length that a request states for its body; None if it states none."""
    stated = dict(scope["headers"]).get(b"content-length", b"")
    return int(stated) if stated.isdigit() else None


def dated() -> tuple[bytes, bytes]:
    """The time of an answer, for `join --check`; uvicorn's own is as old as its loop was busy."""
    return b"date", formatdate(usegmt=True).encode()


async def answer(send: Any, status: int) -> None:
    """An answer without content, after which the connection ends."""
    headers = [(b"connection", b"close"), (b"content-length", b"0"), dated()]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
