"""The estimate before a run: of the right size, quick, and without any effect on the run."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

import fedwinnow
from fedwinnow.commands.progress import Bar
from fedwinnow.experiment import time_estimate as module
from fedwinnow.experiment.prepare import prepare
from fedwinnow.experiment.settings import Experiment
from fedwinnow.experiment.time_estimate import estimate, in_words, workers_of
from fedwinnow.federation.client import Client
from fedwinnow.federation.host import Host
from fedwinnow.testing import comparable, toy_data

SETTINGS: dict[str, Any] = {"clients": 4, "rounds": 3, "epochs": 2, "batch_size": 8, "participation": 0.5}


def test_a_run_with_an_estimate_equals_one_without(tmp_path: Path) -> None:
    said = io.StringIO()
    bar = Bar(Console(file=said))
    told = fedwinnow.run(data=toy_data(), out=tmp_path / "told", watchers=(bar,), **SETTINGS)
    silent = fedwinnow.run(data=toy_data(), out=tmp_path / "silent", **SETTINGS)
    assert "this will take about" in said.getvalue()
    assert comparable(told.folder) == comparable(silent.folder)


def test_nobody_waits_for_an_estimate_that_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> float:
        raise AssertionError("estimated")

    monkeypatch.setattr("fedwinnow.commands.progress.estimate", refuse)
    fedwinnow.run(data=toy_data(), out=tmp_path, watchers=(Bar(Console(quiet=True)),), **SETTINGS)


def test_it_counts_rounds_participants_epochs_and_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "seconds_per_step", lambda stage, client: 1.0)
    monkeypatch.setattr(module, "seconds_per_sample", lambda client: 0.01)
    stage = prepare(Experiment(data=toy_data(), **SETTINGS))
    # 4 sites of 30 samples: 4 batches of 8; 2 take part, 2 epochs. 60 test samples a round, 120 judged and predicted.
    assert estimate(stage, 3) == pytest.approx(3 * (2 * 2 * 4 * 1.0 + 60 * 0.01) + 240 * 0.01)
    monkeypatch.setattr(module, "default_workers", lambda host: 2)
    assert estimate(stage, 3, "processes:workers=2") == pytest.approx(estimate(stage, 3) / 2)
    assert estimate(stage, 0) == 0.0


class Clock:
    """A clock that only moves when a training step is made: the first takes `first` seconds, every other `each`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, first: float, each: float) -> None:
        self.now, self.steps = 0.0, 0
        fit = Client.fit

        def timed(client: Client, *positional: Any, **keywords: Any) -> None:
            fit(client, *positional, **keywords)
            self.now += each if self.steps else first
            self.steps += 1

        monkeypatch.setattr(Client, "fit", timed)
        monkeypatch.setattr(module, "time", self)
        monkeypatch.setattr(module, "seconds_per_sample", lambda client: 0.0)

    def perf_counter(self) -> float:
        """The time on it."""
        return self.now


@pytest.mark.parametrize(
    ("first", "each", "most"),
    [(0.001, 0.001, 0.1), (0.1, 0.1, 0.6), (0.7, 0.3, 1.4), (0.9, 0.9, 1.8), (100.0, 100.0, 100.0)],
)
def test_nobody_waits_longer_than_it_takes_to_know(
    first: float, each: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = prepare(Experiment(data=toy_data(), **SETTINGS))
    clock = Clock(monkeypatch, first, each)
    assert estimate(stage, 3) == pytest.approx(3 * 2 * 2 * 4 * each)  # 48 steps
    assert clock.now <= most


def test_workers_never_exceed_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "default_workers", lambda host: 4)
    specs = ("serial", "processes", "processes:workers=2", "processes:workers=64")
    assert [workers_of(spec, cast(Host, None)) for spec in specs] == [1, 4, 2, 4]


@pytest.mark.parametrize("cold", [0.5, 1.0, 4.0])
def test_a_cold_first_step_does_not_count(cold: float, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = prepare(Experiment(data=toy_data(), **SETTINGS))
    Clock(monkeypatch, cold, 0.01)
    assert estimate(stage, 3) == pytest.approx(3 * 2 * 2 * 4 * 0.01)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.2, "about a second"),
        (7.4, "about 8 seconds"),
        (89, "about 89 seconds"),
        (100, "about 2 minutes"),
        (600, "about 10 minutes"),
        (7200, "about 2 hours"),
        (3 * 86400, "about 3 days"),
        (3 * 366 * 86400, "about 3 years"),
    ],
)
def test_durations_in_words(seconds: float, words: str) -> None:
    assert in_words(seconds) == words
