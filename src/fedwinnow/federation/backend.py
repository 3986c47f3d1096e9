"""The interface of a backend, which takes tasks to clients and brings answers back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from torch import Tensor

from fedwinnow.federation.host import Answer, Task
from fedwinnow.mathematics.payload import Payload


class Backend(Protocol):
    """Where clients run; every backend gives the same results."""

    def exchange(self, tasks: Iterable[Task]) -> Iterator[Answer]:
        """Answers in the order of the tasks; takes the next task only when there is room for it."""

    def score(self, part: str, weights: Payload, count: int) -> Tensor:
        """Logits of the first `count` samples of a part that belongs to no client."""

    def close(self) -> None:
        """End the processes and free the memory that the backend started."""
