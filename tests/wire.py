"""What travels in a run on one machine, for tests that look at it."""

from __future__ import annotations

from typing import Any

import pytest

from fedwinnow.backends.make_backend import Serial
from fedwinnow.federation.host import Answer, Task


class Wire:
    """What travels in a run on one machine: every question and every answer, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: list[tuple[Task, Answer]] = []
        usual = Serial.exchange

        def watched(backend: Serial, tasks: Any) -> Any:
            asked = []

            def passing() -> Any:
                for task in tasks:
                    asked.append(task)
                    yield task

            for answer in usual(backend, passing()):
                self.answers.append((asked[-1], answer))
                yield answer

        monkeypatch.setattr(Serial, "exchange", watched)

    @property
    def of_the_method(self) -> list[tuple[Task, Answer]]:
        """Without the questions of the evaluation."""
        return [(task, answer) for task, answer in self.answers if not task.measures]
