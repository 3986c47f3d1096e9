"""What a coordinator can tell of a run under way: who is there, rounds, time left, accuracy, who was dropped."""

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


class Status(Watcher):
    """Watches a run; `state` may be read from another thread at any time."""

    def __init__(self, expected: int) -> None:
        self.lock = threading.Lock()
        self.roster: Attendance | None = None
        self.expected, self.phase, self.method = expected, "waiting", ""
        self.done, self.rounds = 0, 0
        self.sites: tuple[str, ...] = ()
        self.accuracy: list[tuple[int, float]] = []
        self.dropped: dict[str, list[tuple[int, str]]] = {}
        self.ends: deque[float] = deque(maxlen=RECENT + 1)  # when the last rounds ended

    def meet(self, roster: Attendance) -> None:
        """Remember whom to ask which sites are there."""
        self.roster = roster

    def started(self, stage: Stage, done: int, rounds: int) -> None:
        with self.lock:
            self.phase, self.method, self.done, self.rounds = "running", stage.method.name, done, rounds
            self.sites = () if stage.simulated else tuple(stage.site_names)
            self.ends.append(time.monotonic())

    def round(self, row: dict[str, Any]) -> None:
        with self.lock:
            self.done = row["round"]
            self.ends.append(time.monotonic())
            if row.get("accuracy") is not None:
                self.accuracy = [*self.accuracy, (row["round"], float(row["accuracy"]))][-MOST_ROUNDS:]
            for site, reason in row["dropped"].items():
                self.dropped.setdefault(str(site), []).append((row["round"], one_line(reason)))

    def finished(self, summary: dict[str, Any]) -> None:
        with self.lock:
            self.phase = "finished"

    def stopped(self, status: str) -> None:
        with self.lock:
            self.phase = status

    def state(self) -> dict[str, Any]:
        """Everything that the page shows."""
        known = {} if self.roster is None else self.roster.known  # the roster replaces it, and never empties it
        refused = {} if self.roster is None else dict(self.roster.refused)
        there = {facts["site"]: facts for facts in list(known.values())}
        with self.lock:
            names = sorted({*self.sites, *there, *self.dropped})
            return {
                "phase": self.phase,
                "method": self.method,
                "expected": self.expected,
                "round": self.done,
                "rounds": self.rounds,
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
            "last_drop": {"round": drops[-1][0], "reason": drops[-1][1]} if drops else None,
        }

    def seconds_left(self) -> float | None:
        """The time of the recent rounds, for those to come; None before the first and after the last."""
        if self.phase != "running" or len(self.ends) < 2:
            return None
        return (self.ends[-1] - self.ends[0]) / (len(self.ends) - 1) * (self.rounds - self.done)
