"""The agreement that a site holds the coordinator to, and its record in the site's folder."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from fedwinnow.deployment.asked import Asked, terms_of
from fedwinnow.deployment.error_codes import DEPARTED, for_others
from fedwinnow.errors import DataError, UsageError
from fedwinnow.files import FORMAT, check_format, json_of, write_text

RECORD = "agreement.json"
MOST_EXCHANGES = 100  # questions in a round
REPEATED = 2  # times the agreed rounds: a coordinator that was started again repeats some


@dataclasses.dataclass
class Course:
    """How far a run is; an audit trains several times, and each part has a course of its own."""

    last: tuple[int, int]  # the last question that was answered: round and exchange
    run: str | None = None  # the whole description of the run, from its first question on
    models: set[str] = dataclasses.field(default_factory=set)  # the questions of this round with a model as answer


class HeldAgreement:
    """What was agreed, and how far the run is: a later message may neither ask for more nor ask again."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.rounds: dict[str, int] = {}  # how many were begun of each part, also again
        self.renew(asked)

    def covers(self, asked: Asked) -> bool:
        """Whether another hello asks for the same."""
        return (self.asked.text, self.asked.coordinator) == (asked.text, asked.coordinator)

    def renew(self, asked: Asked) -> None:
        """The coordinator has said hello again with the same terms: it was started again, and may repeat a round."""
        self.asked = asked
        self.summed = False  # whether the sums for an encoder were told
        self.courses: dict[str, Course] = {}
        self.part = ""  # of an audit: which one the last message belongs to

    @property
    def course(self) -> Course:
        """The course of the part that the last message belongs to."""
        return self.courses.setdefault(self.part, Course((self.asked.done, MOST_EXCHANGES)))

    def check(self, message: dict[str, Any]) -> None:
        """Refuse a message, or the `run` of one, whose terms are not those that were agreed."""
        refuse_difference(self.asked.terms, message)

    def check_run(self, run: dict[str, Any], number: Any) -> None:
        """The same for a question; from the first one on, nothing in the description changes any more."""
        self.check(run)
        self.part = self.part_of(run)
        text = json.dumps([run, number], sort_keys=True)
        if self.course.run not in (None, text):
            raise departed("the description of the run has changed since its first question")
        self.course.run = text

    def part_of(self, run: dict[str, Any]) -> str:
        """Which of the agreed parts of an audit a message belongs to; empty where it is none."""
        audit = run.get("audit")
        part = audit.get("part", "") if isinstance(audit, dict) else ""
        if part and part not in (self.asked.audit or {}).get("parts", ()):
            raise departed(f"the audit has no part {part!r:.80}")
        return str(part)

    def begin(self, number: int, exchange: int) -> None:
        """A question of the method: every one has its turn, once."""
        most, course = self.asked.experiment.rounds, self.course
        if not self.asked.done < number <= most:
            raise departed(f"it asks for round {number}; agreed: {self.asked.done + 1} to {most}")
        if not 0 <= exchange < MOST_EXCHANGES:
            raise departed(f"it asks question {exchange} of a round; allowed: 0 to {MOST_EXCHANGES - 1}")
        if (number, exchange) <= course.last:
            raise departed(f"it asks question {exchange} of round {number} again, or late; the last was {course.last}")
        if number != course.last[0]:
            begun = self.rounds.get(self.part, 0)
            if begun >= REPEATED * most:
                raise departed(f"it has begun {begun} rounds; agreed: {most}")
            self.rounds[self.part], course.models = begun + 1, set()
        course.last = number, exchange

    def sum_up(self) -> None:
        """The sums for an encoder are told once, before the first round."""
        if self.summed or self.courses:
            raise departed("it asks for the sums of the encoder again, or late")
        self.summed = True

    def answered_with_model(self, ask: str) -> None:
        """A trained model answers each question once in a round: every further one would tell more."""
        if ask in self.course.models:
            raise departed(f"it asks for another model in the same round ('{ask}')")
        self.course.models.add(ask)

    def record(self, folder: Path, site: str, by: str, time: str) -> None:
        """Write down what was agreed, when and by whom."""
        value = {
            "format": FORMAT,
            "site": site,
            "time": time,
            "by": by,
            "coordinator": self.asked.coordinator,
            "leaves": self.asked.exposes,
            "terms": self.asked.terms,
        }
        try:
            write_text(folder / RECORD, json.dumps(value, indent=1) + "\n")
        except OSError as problem:
            raise DataError(f"{folder / RECORD}: cannot be written ({problem.strerror}); nothing was sent.") from None


def refuse_difference(terms: dict[str, Any], message: dict[str, Any]) -> None:
    """Refuse a message with other terms than these."""
    found = terms_of(message)
    for name in sorted({*found, *terms}):
        ours, theirs = terms.get(name), found.get(name)
        if ours != theirs:
            raise departed(difference(name, ours, theirs))


def recorded(folder: Path) -> dict[str, Any] | None:
    """The last agreement of a site's folder; None if there is none."""
    path = folder / RECORD
    if not path.exists():
        return None
    value: dict[str, Any] = json_of(path, {"format": int, "by": str, "terms": dict})
    check_format(path, value["format"])
    return value


def was_same(record: dict[str, Any] | None, asked: Asked) -> bool:
    """Whether the terms of a record are those that are asked for, rounds aside: a run may be given more."""
    return record is not None and without_rounds(record["terms"]) == without_rounds(asked.terms)


def without_rounds(terms: dict[str, Any]) -> str:
    """Terms as a text, without the number of rounds."""
    told = terms.get("experiment")
    kept = {key: value for key, value in told.items() if key != "rounds"} if isinstance(told, dict) else told
    return json.dumps(terms | {"experiment": kept}, sort_keys=True)


def difference(name: str, ours: Any, theirs: Any) -> str:
    """What differs between the agreement and a message."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in sorted({*ours, *theirs}, key=str):
            if ours.get(key) != theirs.get(key):
                return difference(f"{name}: {key}", ours.get(key), theirs.get(key))
    return f"{name} is {theirs!r:.200}; agreed: {ours!r:.200}"


def departed(what: str) -> UsageError:
    """The refusal of a message that is not part of the agreement."""
    return for_others(UsageError(f"the coordinator departs from what was agreed: {what}. Refused."), DEPARTED)
