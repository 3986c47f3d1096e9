"""The hours that a plan needs, from a step of its model on empty images: the data need not be on this machine."""

from __future__ import annotations

import time
import tomllib
from typing import Any

from fedwinnow import catalogue
from fedwinnow.all_settings import Redo
from fedwinnow.data.load import understood
from fedwinnow.data.source import Source
from fedwinnow.study.recipes import FOLDER
from fedwinnow.study.sweep import to_play
from fedwinnow.study.sweep_plan import Job, Plan

SMALL, LARGE = 32, 4  # how many small or large images a trial batch has: a few large ones take seconds
PATIENCE = 0.5  # seconds for the trial steps of one model


def estimated_hours(plan: Plan, device: str | None = None, redo: Redo = None) -> float | None:
    """Hours of plain training for the runs that are left, one after the other; None for data of unknown size."""
    sizes = tomllib.loads((FOLDER / "sizes.toml").read_text(encoding="utf-8"))
    seconds: dict[tuple[str, str], float] = {}
    total, left = 0.0, {job.folder for job in to_play(plan, redo)}
    for job in plan.jobs:
        source = catalogue.make("data", understood(job.experiment.data))
        if not isinstance(source, Source) or source.name not in sizes:
            return None
        if job.folder not in left:
            continue
        size, model = sizes[source.name], str(job.experiment.model or "lenet")
        if (source.name, model) not in seconds:
            seconds[source.name, model] = seconds_per_sample(model, size, device)
        total += samples_trained(job, source.train or size["train"]) * seconds[source.name, model]
    return total / 3600


def samples_trained(job: Job, train: int) -> float:
    """How many samples the model is trained on, counting repetitions."""
    experiment = job.experiment
    visits = experiment.rounds * max(1, round(experiment.participation * experiment.clients))
    return visits * experiment.epochs * train / experiment.clients


def seconds_per_sample(model: str, size: dict[str, Any], device: str | None) -> float:
    """The seconds of one training step on zeros, per sample."""
    import torch

    from fedwinnow.device import choose_device
    from fedwinnow.models.make_model import make_model
    from fedwinnow.models.model import Shape

    shape = Shape("images", tuple(size["shape"]), size["classes"])
    chosen = choose_device(device)
    torch.set_num_threads(1)  # as in a run
    module = make_model(model, shape, 0).to(chosen)
    batch = shape.example(SMALL if shape.smaller_side <= 32 else LARGE).to(chosen)
    labels = torch.zeros(len(batch), dtype=torch.int64, device=chosen)
    times: list[float] = []
    while len(times) < 2 or (times[-1] < PATIENCE and (len(times) < 10 or sum(times) < PATIENCE)):
        began = time.perf_counter()
        loss: Any = torch.nn.functional.cross_entropy(module(batch), labels)
        loss.backward()
        float(loss.detach())  # waits for a GPU
        times.append(time.perf_counter() - began)
    return min(times) / len(batch)  # the fastest step, because other programs may slow some down
