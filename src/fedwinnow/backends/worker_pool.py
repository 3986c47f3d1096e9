"""The crew: worker processes that stay for a whole run, and the pipes to them."""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from types import ModuleType
from typing import Any

from fedwinnow import errors
from fedwinnow.backends.worker_process import main
from fedwinnow.errors import RunError

PATIENCE = 5.0  # seconds for a worker to end before it is killed

Room = Callable[[int], list[Any]]  # bytes -> the address of an arena with that much room


class WorkerPool:
    """Workers, each with its pipe; a question goes to an idle one."""

    def __init__(self, workers: int) -> None:
        self.processes: list[SpawnProcess] = []
        self.pipes: list[Connection] = []
        self.idle: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.failure: RunError | None = None  # once set, the crew answers nothing more
        try:
            with spawning():
                for _ in range(workers):
                    self.start_one()
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self.processes)

    def start_one(self) -> None:
        """Start one more worker, which gets only its end of the pipe."""
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=main, args=(theirs,), daemon=True, name=f"worker {len(self)}")
        try:
            process.start()
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()  # so that our end notices when the worker ends
        self.processes.append(process)
        self.pipes.append(ours)
        self.idle.put(len(self) - 1)

    def ask_everybody(self, do: str, arguments: list[dict[str, Any]]) -> None:
        """Ask every worker the same question, each with its own arguments."""
        for worker, one in enumerate(arguments):
            self.talk(worker, partial(self.send, worker, {"do": do, "with": one}), "getting ready")
        replies = [self.talk(worker, partial(self.receive, worker), "getting ready") for worker in range(len(self))]
        for reply in replies:
            checked(reply)

    def ask(self, do: str, arguments: dict[str, Any], who: str, room: Room) -> dict[str, Any]:
        """Ask an idle worker and wait for the answer; `who` is named in an error."""
        worker = self.idle.get()
        try:
            return checked(self.talk(worker, partial(self.converse, worker, do, arguments, room), who))
        finally:
            self.idle.put(worker)

    def converse(self, worker: int, do: str, arguments: dict[str, Any], room: Room) -> dict[str, Any]:
        """Send a question and receive the answer, with a larger arena if the worker needs one."""
        self.send(worker, {"do": do, "with": arguments})
        reply = self.receive(worker)
        if "needs" in reply:
            self.send(worker, {"arena": room(reply["needs"])})
            reply = self.receive(worker)
        return reply

    def send(self, worker: int, message: dict[str, Any]) -> None:
        """A message to a worker."""
        self.pipes[worker].send_bytes(json.dumps(message).encode())

    def receive(self, worker: int) -> dict[str, Any]:
        """A message from a worker."""
        message: dict[str, Any] = json.loads(self.pipes[worker].recv_bytes())
        return message

    def talk(self, worker: int, conversation: Callable[[], Any], who: str) -> Any:
        """Send to or receive from a worker; if the worker ends meanwhile, the run ends."""
        if self.failure is not None:
            raise self.failure
        try:
            return conversation()
        except (EOFError, OSError):
            self.failure = self.failure or RunError(self.obituary(worker, who))
            raise self.failure from None
        except BaseException:
            self.failure = RunError("a conversation with a worker was broken off.")
            raise

    def obituary(self, worker: int, who: str) -> str:
        """How a worker ended, for the error message."""
        process = self.processes[worker]
        process.join(PATIENCE)
        code = process.exitcode
        how = f"with exit code {code}"
        if code is not None and code < 0:
            with contextlib.suppress(ValueError):
                how = f"by {signal.Signals(-code).name}"
        hint = " The system may have run out of memory: use fewer workers." if code == -9 else ""
        return f"worker {worker} (process {process.pid}) was ended {how} while it was busy with {who}.{hint}"

    def stop(self) -> None:
        """End all workers at once."""
        self.failure = self.failure or RunError("the workers have been ended.")
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.join(PATIENCE)
            if process.is_alive():
                process.kill()
                process.join()

    def close(self) -> None:
        """End all workers and close the pipes; can be called again."""
        self.stop()
        while self.processes:
            self.processes.pop().close()
            self.pipes.pop().close()


def checked(reply: dict[str, Any]) -> dict[str, Any]:
    """The reply; raises the error that it reports."""
    if "problem" in reply:
        raise getattr(errors, reply["kind"], RunError)(reply["problem"])
    return reply


@contextlib.contextmanager
def spawning() -> Iterator[None]:
    """Block Ctrl-C, which a child inherits, and hide the user's main file while processes start.

    A child would otherwise run the main file again, and so start a script without a main guard a second time.
    """
    main_module = sys.modules["__main__"]
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if hasattr(signal, "pthread_sigmask") else None
    try:
        sys.modules["__main__"] = ModuleType("__main__")
        yield
    finally:
        sys.modules["__main__"] = main_module
        if blocked is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
