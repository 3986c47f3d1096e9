"""Real processes on loopback for the tests of serve and join."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

SECONDS = 240.0  # nothing may take longer, or it hangs


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Cast:
    """Processes that end with the test, and what each of them said."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.processes = folder, dict[str, subprocess.Popen[bytes]]()
        folder.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Cast:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
                process.wait()

    def start(self, name: str, *words: object) -> subprocess.Popen[bytes]:
        """Start `fedwinnow ...`; what it says goes to a file."""
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "FLWR_HOME": str(self.folder)}
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "fedwinnow", *map(str, words)], stdout=log, stderr=log, env=environment
            )
        return self.processes[name]

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(encoding="utf-8")

    def ended(self, name: str, code: int = 0, seconds: float = SECONDS) -> None:
        """Wait for the end of a process, and look at its exit code."""
        try:
            found = self.processes[name].wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{name} hangs; it said:\n{self.said(name)}") from None
        assert found == code, f"{name} ended with {found}; it said:\n{self.said(name)}"

    def wait_for(self, name: str, words: str, seconds: float = SECONDS) -> None:
        """Wait until a process has said something."""
        until = time.monotonic() + seconds
        while words not in self.said(name):
            assert time.monotonic() < until, f"{name} never said {words!r}; it said:\n{self.said(name)}"
            assert self.processes[name].poll() is None or words in self.said(name), (
                f"{name} ended without saying {words!r}; it said:\n{self.said(name)}"
            )
            time.sleep(0.05)

    def wait_until(self, happened: Callable[[], bool], what: str, name: str, seconds: float = SECONDS) -> None:
        """Wait until something has happened while a process lives."""
        until = time.monotonic() + seconds
        while not happened():
            assert time.monotonic() < until, f"{what} never came; {name} said:\n{self.said(name)}"
            assert self.processes[name].poll() is None, f"{name} ended before {what}:\n{self.said(name)}"
            time.sleep(0.05)
