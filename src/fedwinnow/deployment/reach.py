"""Reaching a coordinator step by step, so that a site's people learn which step fails: name, port, TLS, clock."""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import ssl
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from fedwinnow.deployment.foreign_text import one_line
from fedwinnow.deployment.keys import SiteFiles
from fedwinnow.errors import DataError, FedwinnowError, RunError, UsageError

SECONDS = 10.0  # for every step
AHEAD, BEHIND = 4.0, 300.0  # seconds; Flower refuses a site whose clock is further off, by 5 and by 305


@dataclass(frozen=True)
class Reached:
    """A coordinator that answered: after how many seconds, and how far this machine's clock is ahead of its own."""

    seconds: float
    ahead: float | None  # None: it did not say its time


def reach(server: str, files: SiteFiles | None) -> Reached:
    """Ask for the coordinator's sign of life; an error says which step failed and what to do."""
    host, _, port = server.rpartition(":")
    began = time.monotonic()
    find(server, host, int(port))
    if files is None:
        link = http.client.HTTPConnection(host, int(port), timeout=SECONDS)
    else:
        link = http.client.HTTPSConnection(host, int(port), timeout=SECONDS, context=trusting(files))
    with contextlib.closing(link):
        try:
            link.connect()
            asked = time.time()
            link.request("GET", "/health")
            answer = link.getresponse()
        except (OSError, http.client.HTTPException) as problem:
            raise why_not(server, problem, plain=files is None) from None
        seconds = time.monotonic() - began
        if answer.status != 200:
            raise RunError(
                f"something answers at {server}, but it is no fedwinnow serve (status {answer.status}). Compare "
                f"--server with what the coordinator's people gave you."
            )
        return Reached(seconds, ahead_of(answer.getheader("Date"), asked, time.time()))


def find(server: str, host: str, port: int) -> None:
    """Look the name up; this is a step of its own, because what to do about it differs."""
    try:
        socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as problem:
        raise UsageError(
            f"the name {host} is not known to this machine ({one_line(problem)}). Compare --server {server} with what "
            f"the coordinator's people gave you, and ask your network's people whether the name is known here."
        ) from None


def trusting(files: SiteFiles) -> ssl.SSLContext:
    """TLS that trusts the authority of this site's folder and no other."""
    try:
        return ssl.create_default_context(cafile=str(files.authority))
    except (OSError, ssl.SSLError) as problem:
        raise DataError(
            f"{files.authority} cannot be read as a certificate ({one_line(problem)}). Ask the coordinator for this "
            f"site's folder again."
        ) from None


def why_not(server: str, problem: Exception, *, plain: bool) -> FedwinnowError:
    """What a failed connection means, and what to do."""
    from fedwinnow.deployment.flower_visit import certificate_problem

    text = one_line(problem) or type(problem).__name__
    if isinstance(problem, ConnectionRefusedError):
        return RunError(
            f"nothing listens at {server}: the coordinator is not up yet, or it uses another port. Ask when serve is "
            f"started, and check again then."
        )
    if isinstance(problem, TimeoutError):
        return RunError(
            f"{server} did not answer within {SECONDS:g} seconds: the coordinator is not up, or a firewall is between. "
            f"Ask your network's people to allow connections to {server}."
        )
    if isinstance(problem, ssl.SSLCertVerificationError):
        return UsageError(certificate_problem(server, text))
    if isinstance(problem, ssl.SSLError) and re.search("wrong.version.number|record.layer", text, re.IGNORECASE):
        return UsageError(f"{server} speaks plain text: it was started with --insecure, or is another program.")
    if plain and isinstance(problem, http.client.HTTPException | ConnectionResetError):
        return UsageError(f"{server} does not speak plain text: give --tls with the folder made for this site.")
    return RunError(f"{server} was not reached ({text}). Ask the coordinator's people whether serve is running.")


def ahead_of(date: str | None, asked: float, answered: float) -> float | None:
    """By how many seconds this clock is at least ahead of that of an answer; below 0: behind.

    The answer was dated between the question and its arrival, in whole seconds.
    """
    if date is None:
        return None
    try:
        theirs = parsedate_to_datetime(date)
    except ValueError:
        return None
    if theirs.tzinfo is None:
        theirs = theirs.replace(tzinfo=UTC)
    least, most = asked - theirs.timestamp() - 1, answered - theirs.timestamp()  # it was cut to a second
    return least if least > 0 else min(most, 0.0)


def check_clock(ahead: float | None) -> str:
    """The clock in words; an error if the coordinator would refuse this site for it."""
    if ahead is None:
        return "not compared: the coordinator did not say its time"
    here = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
    if ahead > AHEAD or ahead < -BEHIND:
        way = "ahead of" if ahead > 0 else "behind"
        raise RunError(
            f"this machine's clock ({here}) is {abs(ahead):.0f} seconds {way} the coordinator's; allowed: {AHEAD:g} "
            f"ahead, {BEHIND:g} behind. Set the clock that is wrong, best by a time server."
        )
    return f"agrees with the coordinator's to {max(2, abs(round(ahead)))} seconds ({here})"
