"""The work of FedRN's experiments against the way of published code and against the machine's limit.

CNN4, batch 50, 10 of 100 clients with 500 images each, crop and flip, 10,000 test images; random pixels do as well as
real ones. One local epoch: the published experiments have five, which only repeat the same work.
"""

from __future__ import annotations

import os
import statistics
from dataclasses import dataclass

import numpy as np

from benchmarks.contest import Contest, contest
from benchmarks.naive import Job
from benchmarks.peak import matrix_peak
from benchmarks.results import verdict
from fedwinnow.data.dataset import Dataset, Resident, Samples

CLASSES = 10
FORWARD = 28.3e6  # floating-point operations per image; a training step is counted as three of these
AIMS = (2.5, 4.0, 0.5)  # training, whole rounds, share of the peak
PROFILE = """Where the time of a training step went when one process was profiled: two thirds in convolutions, which
forward ran at about the speed of matrix products, 19 % in batch norm, 9 % in pooling and the zeros that its backward
pass starts from, 3 % in ReLU. Tried without effect: huge pages (torch's and glibc's), scoring batches of 25 to 250."""


@dataclass(frozen=True)
class Size:
    """How much work there is."""

    clients: int = 100
    per_client: int = 500
    participants: int = 10
    test_samples: int = 10_000
    turns: int = 3
    cores: int = os.cpu_count() or 1
    peak_seconds: float = 2.0

    @property
    def backend(self) -> str:
        """One worker per core."""
        return f"processes:workers={self.cores}" if self.cores > 1 else "serial"


SMALLEST = Size(clients=4, per_client=10, participants=2, test_samples=10, turns=1, cores=1, peak_seconds=0.01)


def pictures(size: Size) -> Dataset:
    """Random images in the shape of CIFAR-10."""
    random = np.random.default_rng(0)

    def samples(count: int) -> Samples:
        images = random.integers(0, 256, (count, 32, 32, 3), np.uint8)
        return Samples(Resident(images), np.arange(count) % CLASSES, np.arange(count))

    names = tuple(map(str, range(CLASSES)))
    return Dataset(
        "pictures",
        "images",
        names,
        samples(size.clients * size.per_client),
        samples(size.test_samples),
        mean=(0.5,) * 3,
        std=(0.25,) * 3,
    )


def run(*, smallest: bool = False) -> str:
    """The three ratios, as Markdown."""
    size = SMALLEST if smallest else Size()
    job = Job("cnn4", size.clients, size.participants, epochs=1, batch_size=50, crop_and_flip=True)
    peaks: list[float] = []
    with contest(job, pictures(size), size.backend) as race:
        for _ in range(size.turns):
            peaks.append(matrix_peak(size.cores, size.peak_seconds))
            race.turn()
    return report(job, size, race, statistics.median(peaks))


def report(job: Job, size: Size, race: Contest, peak: float) -> str:
    """What came of it, as Markdown."""
    (training, whole), (their_training, their_whole) = race.ours.medians(), race.theirs.medians()
    first, second = race.ratios()
    reached = 3 * FORWARD * job.participants * size.per_client * job.epochs / training
    rows = [
        ("training, seconds", f"{training:.2f}", f"{their_training:.2f}", first),
        (
            f"the same with {size.test_samples:,} test images scored, seconds",
            f"{whole:.2f}",
            f"{their_whole:.2f}",
            second,
        ),
        ("GFLOP/s of training, against matrix products", f"{reached / 1e9:.0f}", f"{peak / 1e9:.0f}", reached / peak),
    ]
    lines = [
        f"CNN4, batch {job.batch_size}, {job.participants} of {job.clients} clients with {size.per_client} images, "
        f"{job.epochs} epoch, crop and flip, on {size.cores} cores:",
        "ours with one worker of one thread per core, the rival (`benchmarks/naive.py`, a model of published code)",
        "with torch's default, all cores for one client at a time. Wall time,",
        f"medians of {size.turns} rounds taken in turns.",
        "The peak is that of fp32 matrix products on all cores. A ratio above 1: ours is faster.",
        "",
        "| what | ours | rival or peak | ratio | aim | |",
        "|---|---:|---:|---:|---:|---|",
        *(
            f"| {what} | {ours} | {other} | {ratio:.2f} | {aim} | {verdict(ratio, aim)} |"
            for (what, ours, other, ratio), aim in zip(rows, AIMS, strict=True)
        ),
        "",
        race.quietest(),
        "",
        PROFILE,
    ]
    return "\n".join(lines)
