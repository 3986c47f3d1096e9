"""Kill a run at any moment, resume it, and find the folder of a run that was never interrupted.

A nursery process imports torch once and forks a child per command, so that a hundred runs cost seconds. The children
run the real command line, and SIGKILL gives them no chance to tidy up.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedwinnow.testing import comparable

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")

NURSERY = '''
import json, os, signal, sys
import numpy, sklearn.datasets, torch, rich.progress, tyro
import fedwinnow.api, fedwinnow.commands.run, fedwinnow.commands.progress
from fedwinnow.cli import main

torch.set_num_threads(1)  # threads do not survive a fork
print("ready", flush=True)


def die_at(call):
    """Kill this process at the so-manieth replacing of a file: before it when even, after it when odd."""
    replace, calls = os.replace, iter(range(10**9))

    def replacing(source, target):
        number = next(calls)
        if number == call // 2 and call % 2 == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        replace(source, target)
        if number == call // 2:
            os.kill(os.getpid(), signal.SIGKILL)

    os.replace = replacing


for line in sys.stdin:
    order = json.loads(line)
    child = os.fork()
    if child == 0:
        if order["call"] is not None:
            die_at(order["call"])
        try:
            main(order["words"])
        except SystemExit as end:
            sys.stderr.flush()
            os._exit(end.code)
        os._exit(99)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
'''

METHOD = '''
from dataclasses import dataclass
from typing import ClassVar
import torch
from fedwinnow.federation.method import Exchange, Method


@dataclass(frozen=True)
class Remembering(Method):
    """Asks twice a round; clients and server remember, and what they remember changes the model."""

    name: ClassVar[str] = "remembering"
    exposes: ClassVar[dict] = Method.exposes | {"visits": "client"}

    def start(self, server):
        server.state["seen"] = torch.zeros(server.clients)

    def exchanges(self, server):
        server.note(stage="count")
        replies = yield Exchange("count", server.sample(), lambda client: {"seen": server.state["seen"]})
        for client, reply in replies:
            server.state["seen"][client] += reply["visits"]
        yield from super().exchanges(server)

    def count(self, client, got):
        client.state["visits"] = client.state.get("visits", torch.zeros(())) + 1
        return {"visits": client.state["visits"]}

    def train(self, client, got):
        reply = super().train(client, got)
        client.state["last"] = reply["weights"]
        reply["weights"] = reply["weights"] * (1 + 0.001 * client.state["visits"])
        return reply

    def send(self, server, client):
        return server.weights | {"seen": server.state["seen"].sum()}
'''


class Nursery:
    """Where children are born and killed."""

    def __init__(self, folder: Path) -> None:
        (folder / "method.py").write_text(METHOD)
        settings = "--data digits:train=200 --model mlp --clients 6 --rounds 12 --epochs 1 --participation 0.5"
        noise = "--noise constant:rate=0.3 --validation 0.2 --json"
        self.words = ["run", *settings.split(), *noise.split(), "--method", str(folder / "method.py")]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        self.process = subprocess.Popen([sys.executable, "-c", NURSERY], **pipes)
        assert self.line() == "ready"

    def line(self) -> str:
        """What the nursery says next; children print too, but not on lines of their own number."""
        return self.process.stdout.readline().strip()

    def run(self, out: Path, *more: str, kill_after: float | None = None, call: int | None = None) -> int:
        """Run the command, kill it where asked, and give back how it ended."""
        words = [*self.words, "--out", str(out), *more, "--quiet"]
        words.remove("--json")
        self.process.stdin.write(json.dumps({"words": words, "call": call}) + "\n")
        self.process.stdin.flush()
        child = int(self.line())
        if kill_after is not None:
            time.sleep(kill_after)
            # The nursery has not reported the end of the child that it waits for, so the number is still the child's.
            os.kill(child, signal.SIGKILL)
        return int(self.line())

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(timeout=20)


@pytest.fixture(scope="module")
def nursery(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nursery")
    nursery = Nursery(folder)
    began = time.monotonic()
    assert nursery.run(folder / "straight") == 0
    nursery.seconds = time.monotonic() - began
    nursery.expected = comparable(folder / "straight")
    yield nursery
    nursery.close()


def finish(nursery: Nursery, out: Path) -> None:
    """Resume to the end and compare everything with the run that was left in peace."""
    assert nursery.run(out, "--resume") == 0
    found = comparable(out)
    assert found.keys() == nursery.expected.keys()
    for name, content in nursery.expected.items():
        assert found[name] == content, name


def test_the_run_has_something_to_lose(nursery):
    assert len(nursery.expected["rounds.jsonl"]) == 12
    assert any(name.startswith("clients/") for name in nursery.expected)
    assert {"summary.json", "state.safetensors", "ledger.json", "clients.csv"} <= nursery.expected.keys()


def test_killed_at_random_moments_and_resumed_equals_uninterrupted(nursery, tmp_path):
    luck, kills, rounds_lost = random.Random(7), 0, set()
    for attempt in range(60):
        out = tmp_path / str(attempt)
        for _ in range(luck.randint(1, 3)):
            ended = run_or_killed(nursery, out, luck.uniform(0.0, 1.1) * nursery.seconds)
            kills += ended == -signal.SIGKILL
            if (out / "rounds.jsonl").exists():
                rounds_lost.add(len((out / "rounds.jsonl").read_text().splitlines()))
        finish(nursery, out)
        if kills >= 25:
            break
    assert kills >= 25
    assert len(rounds_lost) > 4  # the kills were spread over the run


def run_or_killed(nursery: Nursery, out: Path, after: float) -> int:
    """Kill after so many seconds; a run that was quicker has ended well."""
    try:
        ended = nursery.run(out, "--resume", kill_after=after)
    except ProcessLookupError:
        ended = int(nursery.line())
    assert ended in (0, -signal.SIGKILL)
    return ended


@pytest.mark.parametrize("call", [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 23, 31, 38, 47, 60, 83, 100, 131, 170])
def test_killed_right_before_or_after_a_file_is_replaced(nursery, tmp_path, call):
    assert nursery.run(tmp_path / "run", call=call) == -signal.SIGKILL
    finish(nursery, tmp_path / "run")
