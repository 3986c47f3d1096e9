"""The progress of a run in a notebook: one line of text that changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fedwinnow.data.pace import Progressed, watched
from fedwinnow.experiment.play import Watcher
from fedwinnow.experiment.prepare import Stage
from fedwinnow.experiment.time_estimate import in_words
from fedwinnow.notebook import line_of_text, percent

APART = 0.1  # seconds between two changes of the line


class ProgressTold(Watcher):
    """Shows the rounds of one run after another."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self.show, self.shown = show, 0.0
        self.name, self.rounds, self.done, self.began = "", 0, 0, 0.0

    def started(self, stage: Stage, done: int, rounds: int) -> None:
        self.name = f"{stage.method.name} on {stage.scene.data.name}"
        self.rounds, self.done, self.began = rounds, done, time.perf_counter()

    def round(self, row: dict[str, Any]) -> None:
        now, number = time.perf_counter(), row["round"]
        if now - self.shown < APART and number < self.rounds:
            return
        self.shown = now
        each = (now - self.began) / max(number - self.done, 1)
        accuracy = f", accuracy {percent(row['accuracy'])}" if row.get("accuracy") is not None else ""
        left = f", {in_words(each * (self.rounds - number))} left" if number < self.rounds else ""
        self.show(f"{self.name}: round {number} of {self.rounds}{accuracy}, {each:.2f} s a round{left}")

    def read(self, now: Progressed) -> None:
        """How far reading or encoding is."""
        self.show(f"{now.done} of {now.total} {now.things} {now.doing}, {in_words(now.seconds)} left")

    def stopped(self, status: str) -> None:
        self.show(f"{self.name}: {status}")


@contextmanager
def progress_told(wanted: bool | None) -> Iterator[tuple[Watcher, ...]]:
    """A watcher that shows progress, and what is read and encoded in the block; none where nothing is shown."""
    show = line_of_text(wanted)
    if show is None:
        yield ()
        return
    told = ProgressTold(show)
    with watched(told.read):
        yield (told,)
