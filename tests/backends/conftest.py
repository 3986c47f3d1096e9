"""Workers are slow to start, so tests share them."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from dataclasses import replace
from pathlib import Path

import pytest

from fedwinnow.backends.processes import Processes
from fedwinnow.backends.worker_pool import WorkerPool
from fedwinnow.deployment.flower_environment import prepare as keep_flower_quiet
from fedwinnow.errors import UsageError
from fedwinnow.experiment import play
from fedwinnow.experiment.prepare import prepare
from fedwinnow.experiment.settings import Experiment
from fedwinnow.federation.host import Host, Setup
from fedwinnow.federation.memory import Memory

MATERIAL = Path(__file__).parent / "material"

with contextlib.suppress(UsageError):  # where Flower is not installed, its tests are skipped
    keep_flower_quiet("serve")


@pytest.fixture(scope="session")
def crews():
    """Crews of 1, 2 and 4 workers; the smaller ones are some of the four, so only one crew may be used at a time."""
    four = WorkerPool(4)
    try:
        yield {1: some_of(four, 1), 2: some_of(four, 2), 4: four}
    finally:
        four.close()


def some_of(crew: WorkerPool, workers: int) -> WorkerPool:
    """A crew of the first workers of another."""
    fewer = WorkerPool(0)
    fewer.processes, fewer.pipes = crew.processes[:workers], crew.pipes[:workers]
    for worker in range(workers):
        fewer.idle.put(worker)
    return fewer


@pytest.fixture
def material():
    """The folder of methods and models that a user might have written."""
    return MATERIAL


@pytest.fixture
def lend(crews, monkeypatch):
    """Let runs use a crew that is there already: `lend(2)`; `lend(0)` means serial."""

    def choose(workers: int) -> None:
        usual = play.make_backend
        monkeypatch.setattr(
            play,
            "make_backend",
            lambda spec, host: Processes(host, workers, crews[workers]) if workers else usual(spec, host),
        )

    return choose


@pytest.fixture
def make_host(tmp_path):
    """A host on digits, or on what the settings say."""

    def make(**settings) -> Host:
        experiment = Experiment(**({"model": "mlp", "epochs": 1} | settings))
        stage = prepare(experiment)
        setup = Setup(stage.experiment.model, replace(experiment.at_sites(), rounds=3))
        return Host(stage.sites, stage.judged, stage.parts, stage.method, setup, Memory(tmp_path / "clients"))

    return make


@pytest.fixture
def echo(make_host, crews, material):
    """A backend with two workers whose clients send back what they are sent."""
    backend = Processes(make_host(method=str(material / "echo.py")), 2, crews[2])
    yield backend
    backend.close()


def segments() -> set[str]:
    """The names of shared memory that this process has made; empty where the system does not list it."""
    return {path.name for path in Path("/dev/shm").glob(f"fedwinnow_{os.getpid():x}_*")}


@pytest.fixture
def nothing_left():
    """A check that no process and no shared memory is left that was not there before."""
    memory, children = segments(), set(multiprocessing.active_children())

    def check() -> None:
        assert segments() <= memory
        assert set(multiprocessing.active_children()) <= children

    return check
