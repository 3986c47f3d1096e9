"""From what a user wrote to a backend."""

from __future__ import annotations

from fedwinnow.backends.backend import Backend
from fedwinnow.backends.serial import Serial
from fedwinnow.errors import unknown
from fedwinnow.federation.host import Host
from fedwinnow.options import parse_spec


def make_backend(spec: str, host: Host) -> Backend:
    """`serial`, or `processes` with a number of workers."""
    name, _ = parse_spec(spec)
    if name == "serial":
        return Serial(host)
    raise unknown("backend", name, ["serial", "processes"])
