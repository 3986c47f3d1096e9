"""Our round and the naive round of the same job, on the same data, taking turns."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.naive import Job, Naive
from fedwinnow.data.dataset import Dataset
from fedwinnow.experiment.play import Execution, Player, Watcher
from fedwinnow.experiment.prepare import prepare
from fedwinnow.experiment.run_folder import RunFolder
from fedwinnow.experiment.settings import Experiment

ENOUGH_ROUNDS = 10**6  # a benchmark stops by itself


class LastRow(Watcher):
    """Remembers the line of the last round."""

    row: dict[str, Any]

    def round(self, row: dict[str, Any]) -> None:
        self.row = row


@contextmanager
def player_of(experiment: Experiment, backend: str = "serial", *watchers: Watcher) -> Iterator[Player]:
    """A run that stands ready for its first round, in a folder that goes away."""
    with tempfile.TemporaryDirectory() as folder:
        player = Player(prepare(experiment), RunFolder(Path(folder)), Execution(backend=backend), watchers)
        try:
            player.restore()
            yield player
        finally:
            player.federation.backend.close()


def experiment_of(job: Job, dataset: Dataset | str) -> Experiment:
    """The job in our own words."""
    return Experiment(
        data=dataset,
        clients=job.clients,
        participation=job.participants / job.clients,
        model=job.model,
        rounds=ENOUGH_ROUNDS,
        epochs=job.epochs,
        batch_size=job.batch_size,
        optimizer=f"sgd:lr={job.lr},momentum={job.momentum}",
        views="crop_flip" if job.crop_and_flip else "none",
    )


@dataclass
class Times:
    """Seconds of each turn."""

    training: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)  # training and evaluation; for us also log and checkpoint

    def add(self, training: float, whole: float) -> None:
        """Remember one turn."""
        self.training.append(training)
        self.whole.append(whole)

    def medians(self) -> tuple[float, float]:
        """Of training, of the whole round."""
        return statistics.median(self.training), statistics.median(self.whole)


class Contest:
    """Both sides of one job, taking turns, so that whatever else the machine does meanwhile slows down both."""

    def __init__(self, player: Player, last: LastRow, naive: Naive) -> None:
        self.player, self.last, self.naive = player, last, naive
        self.rounds = 0
        self.ours, self.theirs = Times(), Times()
        self.turn()  # both warm up
        self.ours, self.theirs = Times(), Times()

    def turn(self) -> None:
        """One round of each side."""
        self.rounds += 1
        start = time.perf_counter()
        self.player.one_round(self.rounds)
        self.ours.add(self.last.row["seconds"], time.perf_counter() - start)
        training = self.naive.seconds_of("train")
        self.theirs.add(training, training + self.naive.seconds_of("evaluate"))

    def ratios(self) -> tuple[float, float]:
        """How many times faster we are: in training, and in whole rounds."""
        ours, theirs = self.ours.medians(), self.theirs.medians()
        return theirs[0] / ours[0], theirs[1] / ours[1]

    def quietest(self) -> str:
        """The same for the quickest turn of each side, which other load on the machine disturbed least."""
        training = min(self.theirs.training) / min(self.ours.training)
        whole = min(self.theirs.whole) / min(self.ours.whole)
        return f"Quickest turn of each side: training {training:.2f} times, whole round {whole:.2f} times."


@contextmanager
def contest(job: Job, dataset: Dataset | str, backend: str = "serial") -> Iterator[Contest]:
    """Both sides of a job, on the same samples."""
    last = LastRow()
    with tempfile.TemporaryDirectory() as folder, player_of(experiment_of(job, dataset), backend, last) as player:
        data = Path(folder) / "data.npz"
        np.savez(data, **arrays_of(player.stage.scene.dataset))
        with Naive(job, data) as naive:
            yield Contest(player, last, naive)


def arrays_of(dataset: Dataset) -> dict[str, Any]:
    """The samples of a data set, for the other side."""
    assert dataset.test is not None
    return {
        "train_images": dataset.train.features.take(np.arange(len(dataset.train))),
        "train_labels": dataset.train.labels,
        "test_images": dataset.test.features.take(np.arange(len(dataset.test))),
        "test_labels": dataset.test.labels,
    }
