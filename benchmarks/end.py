"""The end of a run with many clients: every site's predictions and verdicts, the tables and the report.

Every client draws 50 samples from the same data. The verdicts are computed once for all sites together, as a run does
it, and once as the sites give them when they are asked one by one; both give the same numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.contest import player_of
from benchmarks.results import verdict
from fedwinnow.data.dataset import Dataset, Resident, Samples
from fedwinnow.experiment.play import Player, claimed
from fedwinnow.experiment.settings import Experiment

CLIENTS = (100, 1_000, 10_000)
PER_CLIENT, PARTICIPANTS, SAMPLES, COLUMNS, CLASSES = 50, 10, 20_000, 64, 10
METHODS = ("fedavg", "jointopt")  # the usual verdict, and one that begins with it
AIM = 10.0  # seconds with the most clients


def run(*, smallest: bool = False) -> str:
    """Seconds by the number of clients, as Markdown."""
    lines = [
        f"MLP on rows, {PER_CLIENT} samples per client, two rounds with {PARTICIPANTS} participants, backend `serial`; "
        "seconds of the processor.",
        f"Aim: all of it below {AIM:.0f} s with {CLIENTS[-1]:,} clients.",
        "",
        "| method | clients | predictions and verdicts | one by one | times | all of the end | on the clock | |",
        "|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for method in METHODS[:1] if smallest else METHODS:
        for clients in CLIENTS[:1] if smallest else CLIENTS:
            together, one_by_one, whole, clock = measure(method, clients)
            reached = verdict(AIM, clock) if clients == CLIENTS[-1] else ""
            lines.append(
                f"| {method} | {clients:,} | {together:.2f} | {one_by_one:.2f} | {one_by_one / together:.1f} "
                f"| {whole:.2f} | {clock:.2f} | {reached} |"
            )
    return "\n".join(lines)


def measure(method: str, clients: int) -> tuple[float, float, float, float]:
    """Processor seconds together, one by one and of the whole end; and those of the whole end on the clock."""
    with player_of(experiment(method, clients)) as player:
        claimed(player.stage, player.folder, player.execution).take(player.folder)
        for number in (1, 2):
            player.one_round(number)
        together, _ = seconds(lambda: verdicts(player, together=True))
        one_by_one, _ = seconds(lambda: verdicts(player, together=False))
        return together, one_by_one, *seconds(player.finish)


def verdicts(player: Player, *, together: bool) -> None:
    """What the sites predict and what they think of their labels."""
    found = player.evaluation.predictions(player.federation)
    player.evaluation.verdicts(player.federation, *(found if together else ()))


def seconds(work: Callable[[], Any]) -> tuple[float, float]:
    """The processor's time for some work, and the clock's."""
    processor, clock = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - processor, time.perf_counter() - clock


def experiment(method: str, clients: int) -> Experiment:
    """A run whose clients differ in nothing but their samples."""
    luck = np.random.default_rng(0)
    labels = np.arange(SAMPLES) % CLASSES
    rows = luck.normal(size=(SAMPLES, COLUMNS)).astype(np.float32)
    rows[:, :CLASSES] += 2 * np.eye(CLASSES, dtype=np.float32)[labels]  # else no verdict would have two heaps
    held = SAMPLES // 20
    train = Samples(Resident(rows[held:]), labels[held:], np.arange(held, SAMPLES))
    test = Samples(Resident(rows[:held]), labels[:held], np.arange(held))
    return Experiment(
        data=Dataset("rows", "rows", tuple(map(str, range(CLASSES))), train, test),
        clients=clients,
        partition=f"rhfl:size={PER_CLIENT}",
        noise="uniform:low=0,high=0.6",
        participation=PARTICIPANTS / clients,
        model="mlp",
        rounds=2,
        method=method,
    )
