"""From what a user wrote to a backend. The simplest one is here too: one client after the other, to debug with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import Tensor

from fedwinnow.device import usable_cores
from fedwinnow.errors import UsageError, unknown
from fedwinnow.federation.backend import Backend
from fedwinnow.federation.host import Answer, Host, Task
from fedwinnow.mathematics.payload import Payload
from fedwinnow.options import parse_spec, to_int


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


def make_backend(spec: str, host: Host) -> Backend:
    """`serial`, or `processes` with a number of workers; what `auto` means was decided before."""
    name, values = parse_spec(spec)
    if name not in ("serial", "processes"):
        raise unknown("backend", name, ["serial", "processes", "auto"])
    for key in values:
        if name == "serial" or key != "workers":
            raise unknown(f"option of backend '{name}':", key, ["workers"] if name == "processes" else [])
    if name == "serial":
        return Serial(host)
    workers = to_int("--backend processes: workers", values["workers"]) if values else default_workers(host)
    if workers < 1:
        raise UsageError(f"--backend {spec} was given; allowed: workers=1 or more.")
    from fedwinnow.backends.processes import Processes

    return Processes(host, workers)


def default_workers(host: Host) -> int:
    """One per GPU where clients run on GPUs, else one per core that this process may use."""
    device = host.model.device
    if device.type == "cuda":
        import torch

        return torch.cuda.device_count() if device.index is None else 1
    if device.type != "cpu":
        return 1
    return usable_cores()
