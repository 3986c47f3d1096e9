"""What a coordinator can tell of a run or an audit under way: who is there, how far it is, who was left out and why."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any, Protocol

from fedwinnow.deployment.foreign_text import one_line
from fedwinnow.experiment.play import Watcher
from fedwinnow.experiment.prepare import Stage

MOST_ROUNDS = 2000  # of the curve, so that a page stays small
RECENT = 10  # rounds from which the time left is estimated


class Attendance(Protocol):
    """The sites that are connected, as the roster knows them."""

    known: dict[int, dict[str, Any]]
    refused: dict[int, tuple[str, float]]


class Step(Protocol):
    """How far an audit is."""

    @property
    def what(self) -> str:
        """What is done now."""

    @property
    def number(self) -> int:
        """Which training it is."""

    @property
    def of(self) -> int:
        """How many trainings there are."""

    @property
    def detail(self) -> str:
        """The question, or why a site is lost."""

    @property
    def site(self) -> str:
        """The site that is lost."""


class Status(Watcher):
    """Watches a run or an audit; `state` may be read from another thread at any time."""

    def __init__(self, expected: int) -> None:
        self.lock = threading.Lock()
        self.roster: Attendance | None = None
        self.expected, self.phase, self.method = expected, "waiting", ""
        self.done, self.rounds = 0, 0
        self.training, self.trainings, self.question = 0, 0, ""  # of an audit
        self.sites: tuple[str, ...] = ()
        self.accuracy: list[tuple[int, float]] = []
        self.dropped: dict[str, list[tuple[str, str]]] = {}  # by site: when, and why
        self.lost: dict[str, str] = {}  # the sites that take no further part in an audit, and why
        self.ends: deque[float] = deque(maxlen=RECENT + 1)  # when the last rounds ended

    def meet(self, roster: Attendance) -> None:
        """Remember whom to ask which sites are there."""
        self.roster = roster

    def started(self, stage: Stage, done: int, rounds: int) -> None:
        with self.lock:
            self.phase, self.method, self.done, self.rounds = "running", stage.method.name, done, rounds
            self.sites = () if stage.simulated else tuple(stage.site_names)
            self.accuracy = []
            self.ends.clear()  # what was between two trainings is no time of a round
            self.ends.append(time.monotonic())

    def round(self, row: dict[str, Any]) -> None:
        with self.lock:
            self.done = row["round"]
            self.ends.append(time.monotonic())
            if row.get("accuracy") is not None:
                self.accuracy = [*self.accuracy, (row["round"], float(row["accuracy"]))][-MOST_ROUNDS:]
            when = f"training {self.training}, round {self.done}" if self.trainings > 1 else f"round {self.done}"
            for site, reason in row["dropped"].items():
                self.dropped.setdefault(str(site), []).append((when, one_line(reason)))

    def step(self, step: Step) -> None:
        """An audit goes on: the next training, a question, or without a site."""
        with self.lock:
            if step.what == "lost":
                self.lost[step.site] = one_line(step.detail)
                return
            self.phase = "finished" if step.what == "over" else step.what
            self.question = one_line(step.detail, 60)
            if step.of:
                self.training, self.trainings = step.number, step.of
            if step.what == "training":
                self.done = 0

    def finished(self, summary: dict[str, Any]) -> None:
        with self.lock:
            self.phase = "judging" if self.trainings else "finished"

    def stopped(self, status: str) -> None:
        with self.lock:
            self.phase = status

    def state(self) -> dict[str, Any]:
        """Everything that the page shows."""
        known = {} if self.roster is None else self.roster.known  # the roster replaces it, and never empties it
        refused = {} if self.roster is None else dict(self.roster.refused)
        there = {facts["site"]: facts for facts in list(known.values())}
        with self.lock:
            names = sorted({*self.sites, *there, *self.dropped, *self.lost})
            return {
                "phase": self.phase,
                "method": self.method,
                "expected": self.expected,
                "round": self.done,
                "rounds": self.rounds,
                "training": self.training,
                "trainings": self.trainings,
                "question": self.question,
                "progress": self.progress(),
                "seconds_left": self.seconds_left(),
                "accuracy": self.accuracy,
                "sites": [self.site(name, there) for name in names],
                "refused": [one_line(text) for text, _ in refused.values()],
            }

    def site(self, name: str, there: dict[str, dict[str, Any]]) -> dict[str, Any]:
        """A line about one site."""
        drops = self.dropped.get(name, [])
        return {
            "name": one_line(name, 60),
            "there": name in there,
            "samples": there.get(name, {}).get("samples"),
            "dropped": len(drops),
            "last_drop": {"when": drops[-1][0], "reason": drops[-1][1]} if drops else None,
            "lost": self.lost.get(name),
        }

    @property
    def to_come(self) -> int:
        """How many rounds are left, of all trainings."""
        later = max(self.trainings - self.training, 0)
        return self.rounds - self.done + later * self.rounds

    def progress(self) -> float:
        """The share of the rounds that are played."""
        if self.phase in ("counting", "writing", "looks", "finished"):
            return 1.0
        whole = self.rounds * max(self.trainings, 1)
        return 1 - self.to_come / whole if whole else 0.0

    def seconds_left(self) -> float | None:
        """The time of the recent rounds, for those to come; None before the first and after the last."""
        if self.phase not in ("running", "training") or len(self.ends) < 2:
            return None
        return (self.ends[-1] - self.ends[0]) / (len(self.ends) - 1) * self.to_come
