"""How long a run will take, from a few training steps on copies of its model."""

from __future__ import annotations

import math
import time
from pathlib import Path

import numpy as np
import torch

from fedwinnow.backends.make_backend import default_workers
from fedwinnow.device import choose_device
from fedwinnow.experiment.prepare import Stage, setup_of
from fedwinnow.federation.client import Client, score, scoring_batch
from fedwinnow.federation.host import Host, Task
from fedwinnow.federation.memory import Memory
from fedwinnow.federation.server import participants
from fedwinnow.options import parse_spec

PATIENCE = 0.4  # seconds for the steps; with making the model and scoring, a user waits about one second
WORTH = 20.0  # seconds of a run in one process from which on several, which take seconds to start, are worth it
SLOW = 20.0  # seconds; a first step slower than this is not measured again


def estimate(stage: Stage, rounds: int, backend: str = "serial", device: str | None = None) -> float:
    """Seconds for `rounds` rounds with their evaluation and the verdicts at the end."""
    experiment = stage.experiment
    setup = setup_of(experiment, str(choose_device(device)))
    sizes = stage.sites.holdings.sizes
    held = sizes[sizes > 0]
    if not len(held) or rounds == 0:
        return 0.0
    with torch.random.fork_rng(devices=[]):
        host = Host(stage.sites, stage.judged, stage.parts, stage.method, setup, Memory(Path("unused")))
        client = host.client(Task(int(np.argmax(sizes)), "train", 1, 0, {}))
        step, scoring = seconds_per_step(stage, client), seconds_per_sample(client)
    batches = float(np.ceil(held / experiment.batch_size).mean())
    training = participants(experiment.participation, len(sizes), len(held)) * experiment.epochs * batches * step
    tested = sum(len(labels) for labels in stage.labels.values()) / experiment.eval_every
    verdicts = 2 * len(stage.judged.given)  # every sample is judged and predicted once
    alone = rounds * (training + tested * scoring) + verdicts * scoring
    return alone / workers_of(settled(backend, alone, host), host)


def backend_for(stage: Stage, device: str | None) -> str:
    """What the backend `auto` means for this run; the results are the same."""
    experiment = stage.experiment
    setup = setup_of(experiment, str(choose_device(device)))
    host = Host(stage.sites, stage.judged, stage.parts, stage.method, setup, Memory(Path("unused")))
    if default_workers(host) == 1:
        return "serial"
    return settled("auto", estimate(stage, experiment.rounds, "serial", device), host)


def settled(backend: str, alone: float, host: Host) -> str:
    """What `auto` means for a run that takes so many seconds in one process."""
    if backend != "auto":
        return backend
    return "processes" if alone > WORTH and default_workers(host) > 1 else "serial"


def seconds_per_step(stage: Stage, client: Client) -> float:
    """Seconds of one training step; the first step is slower than the others, so it counts only if steps are slow."""
    criterion, size = stage.method.criterion, stage.experiment.batch_size
    rows = torch.arange(min(size, len(client)))

    def timed() -> float:
        began = time.perf_counter()
        if client.private is not None:
            client.private.one_step(client.model, criterion, client.drawing(None), rows)
        else:
            client.fit(
                lambda _, x, y: criterion(client.model.module(x), y, client.class_counts).mean(), rows=rows, epochs=1
            )
        float(client.model.weights[0])  # waits for a GPU
        return time.perf_counter() - began

    first, began = timed(), time.perf_counter()
    if first > 2 * PATIENCE:
        return min(first, timed()) if first < SLOW else first
    times = [timed()]
    while time.perf_counter() - began < PATIENCE and len(times) < 20:
        times.append(timed())
    return float(np.median(times))


def seconds_per_sample(client: Client) -> float:
    """Seconds of one scoring batch, per sample."""
    rows = torch.arange(min(scoring_batch(client.model), len(client)))
    times = []
    for _ in range(2):
        began = time.perf_counter()
        score(client.model, client.stored([rows]), client.plain, client.classes).cpu()
        times.append(time.perf_counter() - began)
    return min(times) / len(rows)


def workers_of(backend: str, host: Host) -> int:
    """How many clients train at a time; more workers than the machine can use do not count."""
    name, values = parse_spec(backend)
    if name != "processes":
        return 1
    asked, useful = values.get("workers", ""), default_workers(host)
    return min(int(asked), useful) if asked.isdigit() and int(asked) > 0 else useful


def in_words(seconds: float) -> str:
    """A rounded duration in words."""
    if seconds < 1:
        return "about a second"
    for size, word in ((365.25 * 86400, "year"), (86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= 2 * size or (word == "minute" and seconds >= 90):
            return f"about {math.ceil(seconds / size - 0.5)} {word}s"
    return f"about {math.ceil(seconds)} seconds"
