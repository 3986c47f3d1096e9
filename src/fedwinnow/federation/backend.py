"""What a backend is: it takes tasks to clients and brings answers back. Nothing else may differ between backends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from torch import Tensor

from fedwinnow.federation.host import Answer, Task
from fedwinnow.mathematics.payload import Payload


class Backend(Protocol):
    """Where clients run."""

    def exchange(self, tasks: Iterable[Task]) -> Iterator[Answer]:
        """Answers in the order of the tasks; a task is taken only when there is room for it."""

    def score(self, part: str, weights: Payload, count: int) -> Tensor:
        """Logits of the first `count` samples of a part that belongs to no client."""

    def close(self) -> None:
        """End whatever was started."""
