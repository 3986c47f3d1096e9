"""How far a long piece of work is: whoever shows it to a person says so here, because it happens deep inside a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class Progressed:
    """How far a piece of work is."""

    done: int
    total: int
    seconds: float  # left
    things: str  # what is counted: samples, files, MB
    doing: str  # what is done to them: encoded, read


Watch = Callable[[Progressed], None]

WATCH: ContextVar[Watch | None] = ContextVar("pace", default=None)


@contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Tell `watch` of everything that is read or encoded inside."""
    before = WATCH.set(watch)
    try:
        yield
    finally:
        WATCH.reset(before)


class Pace:
    """Counts what is done and judges how long the rest takes."""

    def __init__(self, total: int, things: str, doing: str) -> None:
        self.total, self.things, self.doing = total, things, doing
        self.done, self.began = 0, time.perf_counter()

    def add(self, count: int) -> None:
        """So many more are done."""
        self.reach(self.done + count)

    def reach(self, done: int) -> None:
        """So many are done by now."""
        self.done = done
        now = time.perf_counter()
        if (watch := WATCH.get()) is not None and self.done:
            seconds = (now - self.began) / self.done * max(self.total - self.done, 0)
            watch(Progressed(min(self.done, self.total), self.total, seconds, self.things, self.doing))
