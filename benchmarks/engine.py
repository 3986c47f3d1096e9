"""The work of FedRN's experiments against the naive way and against the machine's limit.

CNN4, batch 50, 10 of 100 clients with 500 images each, crop and flip, 10,000 test images; random pixels do as well as
real ones.
"""

from __future__ import annotations

import os
import statistics

import numpy as np

from benchmarks.contest import Contest, contest
from benchmarks.naive import Job
from benchmarks.peak import matrix_peak
from fedwinnow.data.dataset import Dataset, Resident, Samples

SAMPLES, TEST_SAMPLES, PER_CLIENT, CLASSES = 50_000, 10_000, 500, 10
FORWARD = 28.3e6  # floating-point operations per image; a training step is counted as three of these
EPOCHS, TURNS = 5, 3


def pictures() -> Dataset:
    """Random images in the shape of CIFAR-10."""
    random = np.random.default_rng(0)

    def samples(count: int) -> Samples:
        images = random.integers(0, 256, (count, 32, 32, 3), np.uint8)
        return Samples(Resident(images), np.arange(count) % CLASSES, np.arange(count))

    names = tuple(map(str, range(CLASSES)))
    return Dataset(
        "pictures", "images", names, samples(SAMPLES), samples(TEST_SAMPLES), mean=(0.5,) * 3, std=(0.25,) * 3
    )


def run(epochs: int = EPOCHS) -> str:
    """The three ratios, as Markdown."""
    cores = os.cpu_count() or 1
    job = Job("cnn4", SAMPLES // PER_CLIENT, 10, epochs, 50, crop_and_flip=True)
    peaks: list[float] = []
    with contest(job, pictures(), f"processes:workers={cores}") as race:
        for _ in range(TURNS):
            peaks.append(matrix_peak(cores))
            race.turn()
    return report(job, race, statistics.median(peaks))


def report(job: Job, race: Contest, peak: float) -> str:
    """What came of it, as Markdown."""
    (training, whole), (their_training, their_whole) = race.ours.medians(), race.theirs.medians()
    first, second = race.ratios()
    reached = 3 * FORWARD * job.participants * PER_CLIENT * job.epochs / training
    lines = [
        f"CNN4, batch {job.batch_size}, {job.participants} of {job.clients} clients with {PER_CLIENT} images, "
        f"{job.epochs} epochs, crop and flip; one worker per core;",
        f"medians of {TURNS} rounds taken in turns with the naive way (`benchmarks/naive.py`) and the matrix products.",
        "",
        "| what | ours | reference | ratio | aim |",
        "|---|---:|---:|---:|---:|",
        f"| training, seconds, against the naive way | {training:.2f} | {their_training:.2f} | {first:.2f} | 2.5 |",
        f"| the same with {TEST_SAMPLES:,} test images scored | {whole:.2f} | {their_whole:.2f} | {second:.2f} | 4 |",
        f"| GFLOP/s of training, against fp32 matrix products on all cores | {reached / 1e9:.0f} | {peak / 1e9:.0f} "
        f"| {reached / peak:.2f} | 0.5 |",
    ]
    return "\n".join(lines)
