"""What clients cost that do not take part: 10 participants among 1,000, 20,000 and 100,000 clients.

Every client draws 10 samples from the same data, so that nothing differs but the number of clients. Each number has a
process of its own, because peak memory belongs to a process; they take turns.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time

import numpy as np

CLIENTS = (1_000, 20_000, 100_000)
PER_CLIENT, PARTICIPANTS, SAMPLES, COLUMNS, CLASSES = 10, 10, 150_000, 32, 10
TURNS, ROUNDS_PER_TURN = 9, 5
AIM = 0.30


def run(*, smallest: bool = False) -> str:
    """Seconds and memory by the number of clients, as Markdown."""
    numbers, turns = (CLIENTS[:1], 1) if smallest else (CLIENTS, TURNS)
    processes = [start(clients) for clients in numbers]
    seconds: list[list[float]] = [[] for _ in numbers]
    memory = [0.0 for _ in numbers]
    for _ in range(turns):
        for place, process in enumerate(processes):
            times, memory[place] = ask(process)
            seconds[place] += times
    for process in processes:
        process.communicate()
    return table(numbers, turns, [statistics.median(times) for times in seconds], memory)


def table(numbers: tuple[int, ...], turns: int, seconds: list[float], memory: list[float]) -> str:
    """The measurements as Markdown."""
    lines = [
        f"MLP on rows, {PARTICIPANTS} participants with {PER_CLIENT} samples each, backend `serial`; a round with "
        "evaluation, log and checkpoint;",
        f"medians of {turns * ROUNDS_PER_TURN} rounds taken in turns. Aim: within {AIM:.0%} of {numbers[0]:,} clients.",
        "",
        f"| clients | processor ms per round | against {numbers[0]:,} | peak memory, MB | against {numbers[0]:,} |",
        "|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {clients:,} | {1e3 * time_:.1f} | {time_ / seconds[0]:.2f} | {size:.0f} | {size / memory[0]:.2f} |"
        for clients, time_, size in zip(numbers, seconds, memory, strict=True)
    ]
    return "\n".join(lines)


def start(clients: int) -> subprocess.Popen[str]:
    """A process with so many clients."""
    command = [sys.executable, "-m", "benchmarks.growth", str(clients)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ask(process: subprocess.Popen[str]) -> tuple[list[float], float]:
    """Let a process play its turn: the seconds of its rounds, and its peak memory so far in MB."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("turn\n")
    process.stdin.flush()
    times, memory = json.loads(process.stdout.readline())
    return times, memory


def serve(clients: int) -> None:
    """Play some rounds for every line of the input."""
    from benchmarks.contest import ENOUGH_ROUNDS, player_of
    from fedwinnow.data.dataset import Dataset, Resident, Samples
    from fedwinnow.experiment.settings import Experiment
    from fedwinnow.experiment.summary import peak_memory

    rows = np.random.default_rng(0).normal(size=(SAMPLES, COLUMNS)).astype(np.float32)
    names = tuple(map(str, range(CLASSES)))
    samples = Samples(Resident(rows), np.arange(SAMPLES) % CLASSES, np.arange(SAMPLES))
    experiment = Experiment(
        data=Dataset("rows", "rows", names, samples),
        clients=clients,
        partition=f"rhfl:size={PER_CLIENT}",
        participation=PARTICIPANTS / clients,
        model="mlp",
        rounds=ENOUGH_ROUNDS,
    )
    with player_of(experiment) as player:
        player.one_round(1)
        for _ in sys.stdin:
            times = []
            for _ in range(ROUNDS_PER_TURN):
                began = time.process_time()  # a single thread computes all of it, and other load counts little so
                player.one_round(player.done + 1)
                times.append(time.process_time() - began)
            print(json.dumps([times, peak_memory()]), flush=True)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
