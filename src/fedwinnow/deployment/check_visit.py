"""A short visit to the coordinator that hears what will be asked and takes no place in the run."""

from __future__ import annotations

import time
from typing import Any

from fedwinnow.deployment.error_codes import LEDGER
from fedwinnow.deployment.flower_backend import CHECKS, pause
from fedwinnow.deployment.holding import Letter
from fedwinnow.deployment.keys import SiteFiles
from fedwinnow.deployment.site import Site
from fedwinnow.errors import DataError, RunError
from fedwinnow.mathematics.payload import Payload

SECONDS = 40.0  # to wait for the coordinator's first message
HEARD = 5.0  # seconds to wait until the coordinator says that it heard the answer
HEARTBEAT = 60.0  # longer than the visit


class Listener:
    """Stands in for a site: keeps what the coordinator says, and answers that it only checks."""

    def __init__(self, site: Site) -> None:
        self.site, self.ledger = site, site.ledger
        self.hello: dict[str, Any] | None = None
        self.heard = False

    def answer(self, facts: dict[str, Any], payload: Payload) -> Letter:
        """The first message is kept; every answer is the same, and is in the site's ledger."""
        if facts.get("kind") == "hello":
            self.hello = facts
        else:
            self.heard = True
        return self.said(facts)

    def failed(self, facts: dict[str, Any], problem: Exception) -> Letter:
        """A message that cannot be read gets the same answer."""
        self.heard = True
        return self.said(facts)

    def said(self, facts: dict[str, Any]) -> Letter:
        try:
            return self.site.booked(facts, {"site": self.site.name, CHECKS: True}, {})
        except DataError:
            return {"error": LEDGER}, {}


def ask_hello(site: Site, server: str, files: SiteFiles | None) -> dict[str, Any]:
    """The coordinator's first message; an error if it does not let this site in, or says nothing."""
    from fedwinnow.deployment.flower_visit import JoinRefused, Unreachable, Visit

    listener, visit = Listener(site), Visit(server, files, HEARTBEAT, site.consent.policy.key)
    try:
        visit.enter()
        site.coordinator = visit.tls.found if visit.tls else None
        try:
            listen(visit, listener)
        finally:
            visit.leave()
    except JoinRefused as problem:
        raise RunError(
            f"{problem}. If `join` of this site runs already, all is well; otherwise wait two minutes and check again, "
            f"and if it stays, ask the coordinator whether this site's key was revoked, and for its folder (fedwinnow "
            f"certificates)."
        ) from None
    except Unreachable as problem:
        raise RunError(f"{problem}. Check again.") from None
    if listener.hello is None:
        raise RunError(
            f"{server} let this site in, but did not say within {SECONDS:g} seconds what it will ask: it may be in the "
            f"middle of a round. Check again later."
        )
    return listener.hello


def listen(visit: Any, listener: Listener) -> None:
    """Answer until the coordinator has said what it will ask, and has heard that this is a check."""
    began = since = time.monotonic()
    told: float | None = None
    while not listener.heard:
        now = time.monotonic()
        if now - began > SECONDS or (told is not None and now - told > HEARD):
            return
        since = time.monotonic() if visit.one(listener) else pause(since)
        if told is None and listener.hello is not None:
            told = time.monotonic()
