"""A worker process: it has a host, answers one question after the other, and ends when its parent does.

Questions and answers are JSON; their tensors are in arenas. The other end of the pipe is in `worker_pool.py`.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import threading
import traceback
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
from torch import Tensor

from fedwinnow.backends.host_as_text import build_host
from fedwinnow.backends.shared_memory import Mappings, OpenedArrays, plan, read, write
from fedwinnow.errors import FedwinnowError
from fedwinnow.federation.host import Answer, Host, Task
from fedwinnow.mathematics.payload import Payload, problem_with


def main(connection: Connection) -> None:
    """Serve until the pipe closes; then exit without cleaning up, because the parent removes the shared memory."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    threading.Thread(target=end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    worker = Worker(connection)
    try:
        while True:
            worker.serve()
    except (EOFError, OSError):
        os._exit(0)


def end_with_parent() -> None:
    """Exit when the parent ends, also when it was killed."""
    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


class Worker:
    """Answers the parent's questions with the host of this process."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.host: Host | None = None
        self.arrays = OpenedArrays()
        self.arenas = Mappings()

    def serve(self) -> None:
        """Take one question and answer it; an error is an answer, too."""
        question = self.receive()
        try:
            reply = getattr(self, question["do"])(**question["with"])
        except FedwinnowError as problem:
            reply = {"problem": str(problem), "kind": kind_of(problem)}
        except Exception as problem:
            text = f"{type(problem).__name__}: {problem}\n{traceback.format_exc()}"
            reply = {"problem": text, "kind": "RunError"}
        self.send(reply)

    def receive(self) -> dict[str, Any]:
        """The next message."""
        message: dict[str, Any] = json.loads(self.connection.recv_bytes())
        return message

    def send(self, message: dict[str, Any]) -> None:
        """A message to the parent."""
        self.connection.send_bytes(json.dumps(message).encode())

    # --- what may be asked -----------------------------------------------------------------------------------------

    def prepare(self, host: dict[str, Any], device: str) -> dict[str, Any]:
        """Make the host of a run; the host of an earlier run is freed."""
        self.host = None
        gc.collect()  # frees views of the arrays before the arrays are closed
        self.arrays.close()
        self.arenas.close()
        self.host = build_host(host, device, self.arrays)
        return {}

    def answer(self, task: dict[str, Any], payload: list[Any], arena: list[Any]) -> dict[str, Any]:
        """Let a client answer; its reply and its notes go into the arena."""
        assert self.host is not None
        answer = self.host.answer(Task(**task, payload=self.unpack(payload)))
        refuse_strange(answer, self.host)
        both = {f"reply {key}": value for key, value in answer.reply.items()}
        both |= {f"note {key}": value for key, value in answer.notes.items()}
        return {
            "memory": answer.memory,
            "forward_samples": int(answer.forward_samples),
            "backward_samples": int(answer.backward_samples),
            "seconds": answer.seconds,
            "error": answer.error,
            "trace": answer.trace,
            "absent": answer.absent,
            **self.pack(both, arena),
        }

    def score(self, part: str, start: int, stop: int, payload: list[Any], arena: list[Any]) -> dict[str, Any]:
        """Logits of some samples that belong to no client."""
        assert self.host is not None
        return self.pack({"logits": self.host.score(part, self.unpack(payload), start, stop)}, arena)

    # --- tensors ---------------------------------------------------------------------------------------------------

    def unpack(self, parcels: list[Any]) -> Payload:
        """The tensors of a question, from their arenas, in the order in which they were sent."""
        found: Payload = {}
        for address, entry in parcels:
            found |= read(self.arenas.buffer(address), [entry])
        return found

    def pack(self, payload: Payload, arena: list[Any]) -> dict[str, Any]:
        """Put tensors into an arena; asks the parent for a larger one if they do not fit."""
        entries, size = plan(payload)
        buffer = self.arenas.buffer(arena)
        if size > len(buffer):
            self.send({"needs": size})
            buffer = self.arenas.buffer(self.receive()["arena"])
        write(buffer, payload, entries)
        return {"entries": entries}


def kind_of(problem: FedwinnowError) -> str:
    """The name of the nearest class in `fedwinnow.errors`, which the parent can raise."""
    return next(kind.__name__ for kind in type(problem).__mro__ if kind.__module__ == FedwinnowError.__module__)


def refuse_strange(answer: Answer, host: Host) -> None:
    """Replace a reply that is not a payload by the error that a serial run would give."""
    if answer.error is None and not is_payload(answer.reply):
        answer.error = problem_with(answer.reply, host.method.exposes) or "its reply is not a payload of tensors"
    if answer.error is None and not is_payload(answer.notes):
        answer.error = "its notes must be tensors, each with a name"
    if answer.error is not None:
        answer.reply, answer.notes = {}, {}


def is_payload(thing: object) -> bool:
    """Whether it is a dictionary of named, dense tensors."""
    return isinstance(thing, dict) and all(
        isinstance(key, str) and isinstance(value, Tensor) and value.layout == torch.strided
        for key, value in thing.items()
    )
