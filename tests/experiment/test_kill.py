"""Kill a run at any moment, resume it, and find the folder of a run that was never interrupted.

A nursery process imports torch once and forks a child per command, so that a hundred runs cost seconds. The children
run the real command line, and SIGKILL gives them no chance to tidy up.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedwinnow.testing import comparable

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")

NURSERY = '''
import json, os, signal, sys
import rich.progress, torch
import fedwinnow.commands.progress, fedwinnow.experiment.play, fedwinnow.mathematics.two_gaussians
from fedwinnow.cli import main, parse
from fedwinnow.commands.run import Run
from fedwinnow.experiment.prepare import prepare

torch.set_num_threads(1)  # threads do not survive a fork
fedwinnow.experiment.play.APART = 0.0  # a checkpoint after every round, however short
prepare(parse(Run, "run", ["--data", "digits:train=100", "--model", "mlp"]).experiment())  # imports all the rest
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


def rounds_in(out: Path) -> int:
    """How many rounds the folder has so far."""
    path = out / "rounds.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


class Nursery:
    """Where children are born and killed."""

    def __init__(self, folder: Path) -> None:
        (folder / "method.py").write_text(METHOD)
        settings = "--data digits:train=200 --model mlp --clients 6 --rounds 12 --epochs 1 --participation 0.5"
        noise = "--noise constant:rate=0.3 --validation 0.2 --quiet"
        self.words = ["run", *settings.split(), *noise.split(), "--method", str(folder / "method.py")]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "bufsize": 0}
        self.process = subprocess.Popen([sys.executable, "-c", NURSERY], **pipes)
        assert self.line() == "ready"

    def line(self) -> str:
        """What the nursery says next; its children are quiet."""
        return self.process.stdout.readline().decode().strip()

    def run(self, out: Path, *more: str, kill_at: tuple[int, float] | None = None, call: int | None = None) -> int:
        """Run the command, kill it so many seconds after a round or at a write where asked, and say how it ended."""
        words = [*self.words, "--out", str(out), *more]
        self.process.stdin.write(json.dumps({"words": words, "call": call}).encode() + b"\n")
        child = int(self.line())
        if kill_at is not None:
            number, delay = kill_at
            while rounds_in(out) < number and not self.ended(0.001):
                continue
            if not self.ended(delay):
                with contextlib.suppress(ProcessLookupError):  # it may end in this very moment
                    os.kill(child, signal.SIGKILL)
        return int(self.line())

    def ended(self, seconds: float) -> bool:
        """Whether the child ends within so many seconds."""
        return bool(select.select([self.process.stdout], [], [], seconds)[0])

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


@pytest.fixture(scope="module")
def nursery(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nursery")
    nursery = Nursery(folder)
    assert nursery.run(folder / "straight") == 0
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


@pytest.mark.parametrize(("wanted", "seed"), [(8, 7), pytest.param(60, 8, marks=pytest.mark.slow)])
def test_killed_at_random_moments_and_resumed_equals_uninterrupted(nursery, tmp_path, wanted, seed):
    luck, kills, found = random.Random(seed), 0, set()
    for attempt in range(2 * wanted):
        out = tmp_path / str(attempt)
        for _ in range(3):
            moment = (luck.randint(0, 12), luck.uniform(0.0, 0.03))
            ended = nursery.run(out, "--resume", kill_at=moment)
            assert ended in (0, -signal.SIGKILL)
            kills += ended != 0
            found.add(rounds_in(out))
        finish(nursery, out)
        if kills >= wanted:
            break
    assert kills >= wanted
    assert len(found) > min(4, wanted / 4)  # they were spread over the run


@pytest.mark.parametrize("call", [0, 1, 2, 3, 5, 8, 10, 12, 13, 31, 60, 83, 108, 131])
def test_killed_right_before_or_after_a_file_is_replaced(nursery, tmp_path, call):
    assert nursery.run(tmp_path / "run", call=call) == -signal.SIGKILL
    finish(nursery, tmp_path / "run")
