"""How far encoding is: whoever shows it to a person says so here, because encoding happens deep inside a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Watch = Callable[[int, int, float], None]  # samples done, samples in all, seconds left

WATCH: ContextVar[Watch | None] = ContextVar("encoding", default=None)


@contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Tell `watch` of everything that is encoded inside."""
    before = WATCH.set(watch)
    try:
        yield
    finally:
        WATCH.reset(before)


class Pace:
    """Counts what is encoded and judges how long the rest takes."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.began = total, 0, time.perf_counter()

    def add(self, count: int) -> None:
        """So many samples more are done."""
        self.done += count
        if (watch := WATCH.get()) is not None:
            seconds = (time.perf_counter() - self.began) / self.done * (self.total - self.done)
            watch(self.done, self.total, seconds)
