"""Real processes on loopback for the tests of serve and join."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import socket
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any

import torch
from torch import Tensor

from fedwinnow.backends.worker_pool import spawning
from fedwinnow.deployment.site import Letter, Site
from fedwinnow.mathematics.payload import Payload

SECONDS = 900.0  # nothing may take longer, or it hangs
LOOK = 0.05

# A process that has imported everything once; the others are forked from it, because the imports take seconds each.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "fedwinnow.deployment.flower_link",
        "fedwinnow.deployment.flower_visit",
        "fedwinnow.deployment.flower_run",
        "tyro",
        "rich.progress",
        "catalogues_read",
    ]
)


def free_port() -> int:
    """A port that nobody uses, below those that systems give to connections: nobody else gets it by chance later."""
    while True:
        port = random.SystemRandom().randrange(12_000, 32_000)
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            return port


def act(words: list[str], log: str, folder: str, tamper: str | None) -> None:
    """A process: `fedwinnow ...`, with what it says in a file."""
    from fedwinnow.cli import main

    if tamper is not None:
        cheat(tamper, Path(folder))
    with open(log, "ab", buffering=0) as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, encoding="utf-8") for number in (1, 2))
    os.chdir(folder)
    main(words)


TAMPERED: dict[str, Callable[[Tensor], Tensor]] = {
    "nan": lambda weights: weights * float("nan"),
    "shape": lambda weights: weights[:-1],
    "huge": lambda weights: torch.full_like(weights, 3e38),
}


def cheat(how: str, folder: Path) -> None:
    """Make this process another than it should be, past its own checks."""
    if how == "clock":
        own_clock(folder)
    elif how == "gives up":
        give_up_when_told(folder)
    else:
        Site.answer = dishonest(how, folder)  # type: ignore[method-assign]


def dishonest(how: str, folder: Path) -> Callable[[Site, dict[str, Any], Payload], Letter]:
    """How a site answers that sends other weights than it has found, dies sending them, is slow, or claims too much."""
    from fedwinnow.deployment import flower_visit

    honest, hellos = Site.answer, list[str]()

    def answer(self: Site, facts: dict[str, Any], payload: Payload) -> Letter:
        if how == "slow" and facts.get("kind") == "ask" and (folder / "hold").exists():
            (folder / "held").touch()
            while (folder / "hold").exists():
                time.sleep(LOOK)
        said, sent = honest(self, facts, payload)
        if how == "claims everybody" and facts.get("kind") == "hello":
            hellos.append("one more")
            return said | {"site": "site-a"} | ({"clients": [0, 1, 2]} if len(hellos) == 1 else {}), sent
        if how == "dies" and sent:  # the reply is announced by then, and what it is made of never follows
            flower_visit.push_objects = lambda objects, *parts, **more: die(objects, folder)
            return said, sent
        changed = TAMPERED.get(how, lambda weights: weights)
        return said, {key: changed(value) if key == "reply.weights" else value for key, value in sent.items()}

    return answer


def die(objects: dict[str, Any], folder: Path) -> None:
    """End as a power cut would, and leave word which message will never come."""
    from flwr.app import Message

    (never,) = [name for name, value in objects.items() if isinstance(value, Message)]
    (folder / "last word").write_text(never)
    (folder / "last word").replace(folder / "never")
    os._exit(9)


def own_clock(folder: Path) -> None:
    """A coordinator whose time stands still until the test moves it; it writes down whose answers it has."""
    from fedwinnow.deployment import flower_backend

    def monotonic() -> float:
        path = folder / "clock"
        return float(path.read_text()) if path.exists() else 0.0

    usual = flower_backend.answer_of

    def answer_of(client: int, outcome: Any) -> Any:
        with (folder / "received").open("a") as stream:
            stream.write(f"{client}\n")
        return usual(client, outcome)

    flower_backend.time = SimpleNamespace(monotonic=monotonic, sleep=time.sleep)  # type: ignore[assignment]
    flower_backend.answer_of = answer_of


def give_up_when_told(folder: Path) -> None:
    """A coordinator that waits for the rest of a message until it is known that it will never come."""
    from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectUnavailableError

    from fedwinnow.deployment import flower_link

    usual = flower_link.pull_objects

    def pull_objects(object_ids: list[str], pull_object_fn: Callable[[str], bytes], **more: Any) -> Any:
        def one(name: str) -> bytes:
            try:
                return pull_object_fn(name)
            except ObjectUnavailableError:
                if (folder / "never").exists() and (folder / "never").read_text() in object_ids:
                    raise ObjectPullError(name, "it never comes") from None
                raise

        return usual(object_ids, one, **more)

    flower_link.pull_objects = pull_objects


class Cast:
    """Processes that end with the test, and what each of them said."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.processes = folder, dict[str, BaseProcess]()
        folder.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Cast:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.processes.values():
            process.kill()
            process.join()

    def start(self, name: str, *words: object, tamper: str | None = None) -> BaseProcess:
        """Start `fedwinnow ...` in the folder of the cast."""
        log = self.folder / f"{name}.log"
        log.touch()
        process = CONTEXT.Process(target=act, args=([str(word) for word in words], str(log), str(self.folder), tamper))
        with spawning():
            process.start()
        self.processes[name] = process
        return process

    def kill(self, name: str) -> None:
        """End a process as a power cut would."""
        self.processes[name].kill()
        self.processes[name].join()

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(encoding="utf-8")

    def ended(self, name: str, code: int = 0, seconds: float = SECONDS) -> None:
        """Wait for the end of a process, and look at its exit code."""
        self.processes[name].join(seconds)
        found = self.processes[name].exitcode
        assert found is not None, f"{name} hangs; it said:\n{self.everything()}"
        assert found == code, f"{name} ended with {found}; it said:\n{self.everything()}"

    def everything(self) -> str:
        return "\n".join(f"--- {name}\n{self.said(name)}" for name in self.processes)

    def wait_for(self, name: str, words: str, seconds: float = SECONDS) -> None:
        """Wait until a process has said something."""
        self.wait_until(lambda: words in self.said(name), repr(words), name, seconds)

    def wait_until(self, happened: Callable[[], bool], what: str, name: str, seconds: float = SECONDS) -> None:
        """Wait until something has happened while a process lives."""
        until = time.monotonic() + seconds
        while True:
            alive = self.processes[name].is_alive()  # before the look: it may do it as its last act
            if happened():
                return
            assert alive, f"{name} ended before {what}:\n{self.everything()}"
            assert time.monotonic() < until, f"{what} never came:\n{self.everything()}"
            time.sleep(LOOK)
