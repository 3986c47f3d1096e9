"""The simplest backend, and the one to debug with: one client after the other, in this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import Tensor

from fedwinnow.federation.host import Answer, Host, Task
from fedwinnow.mathematics.payload import Payload


class Serial:
    """Runs every client in this process."""

    def __init__(self, host: Host) -> None:
        self.host = host

    def exchange(self, tasks: Iterable[Task]) -> Iterator[Answer]:
        for task in tasks:
            yield self.host.answer(task)

    def score(self, part: str, weights: Payload, count: int) -> Tensor:
        return self.host.score(part, weights, 0, count)

    def close(self) -> None:
        return None
