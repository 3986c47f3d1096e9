"""Who says yes for a site: its policy, a person at the terminal, or nobody, where there is nothing to keep."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from fedwinnow.deployment.asked import Asked
from fedwinnow.deployment.error_codes import REFUSED, UNDECIDED, for_others
from fedwinnow.deployment.exposure_limit import Declined, beyond_in_words
from fedwinnow.deployment.objections import objections
from fedwinnow.deployment.policy import ANY, Policy, shipped
from fedwinnow.errors import UsageError

WAIT = 0.5  # seconds for which a message waits for a person; then the coordinator is told that nobody has answered
QUESTION = "Shall this site take part? [yes/no] "


class Undecided(UsageError):
    """The people at the site have not answered yet; the coordinator asks again."""


class Consent(Protocol):
    """Who says yes."""

    policy: Policy  # what holds while the run goes on: exposure, the size of inputs, the coordinator's key
    by: str  # who it is, for the record

    def ask(self, asked: Asked, before: str | None = None) -> None:
        """Returns if the site takes part; raises Declined, or Undecided.

        `before`: who has agreed to the same run before, where the site was started again in the middle of it.
        """


class ByPolicy:
    """The site's policy decides, or with --yes the one that is shipped."""

    def __init__(self, policy: Policy, by: str) -> None:
        self.policy, self.by = policy, by

    def ask(self, asked: Asked, before: str | None = None) -> None:
        """Refuse whatever the policy does not name."""
        if found := objections(self.policy, asked):
            raise declined("; ".join(found))


class ByPerson:
    """A person at the terminal decides. The exposure is not theirs to allow by a single key: it needs its flag."""

    def __init__(self, policy: Policy, read: Callable[[str], str], tell: Callable[[str], None]) -> None:
        self.policy, self.by, self.read, self.tell = policy, "a person at the terminal", read, tell
        self.answers: dict[str, bool] = {}
        self.reading: threading.Thread | None = None

    def ask(self, asked: Asked, before: str | None = None) -> None:
        """Ask once for each different set of terms; the link stays alive while the person reads."""
        assert self.policy.exposure is not None
        if too_much := beyond_in_words(asked.method.name, asked.exposes, self.policy.exposure):
            raise declined(too_much)
        if before == self.by:
            return
        key = f"{asked.coordinator} {asked.done > 0} {asked.text}"
        if key not in self.answers and (self.reading is None or not self.reading.is_alive()):
            for each in objections(shipped(exposure=self.policy.exposure), asked):
                self.tell(f"  beyond the default policy: {each}")
            self.reading = threading.Thread(target=self.wait_for_answer, args=(key,), daemon=True)
            self.reading.start()
        if self.reading is not None:
            self.reading.join(WAIT)
        if key not in self.answers:
            raise for_others(Undecided("nobody has answered yet"), UNDECIDED)
        if not self.answers.pop(key):  # the next start of the run is asked about again
            raise declined("a person at the terminal said no")

    def wait_for_answer(self, key: str) -> None:
        """Read lines until one is an answer; a terminal that is closed says no."""
        while True:
            try:
                said = self.read(QUESTION).strip().lower()
            except (EOFError, OSError):
                said = "no"
            if said in ("y", "yes", "n", "no"):
                self.answers[key] = said.startswith("y")
                return


class Trial:
    """A shared scene, which the coordinator has as well: there is nothing to keep from it, and nobody is asked."""

    policy = Policy(exposure="sample", start=ANY)
    by = "nobody: the samples are those of a shared scene"

    def ask(self, asked: Asked, before: str | None = None) -> None:
        """Always yes."""


def declined(why: str) -> Declined:
    """The refusal, of which the coordinator learns nothing but itself."""
    return for_others(Declined(f"this site does not take part: {why}."), REFUSED)


def demanded_least_count(count: int | None, consent: Consent) -> int | None:
    """The least count of a site: the larger one of its flag and its policy."""
    demanded = consent.policy.least_count
    return count if demanded is None else max(count or 0, int(demanded))
