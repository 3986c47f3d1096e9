"""The time that a plan needs, from a step of its model on empty samples: the data need not be on this machine."""

from __future__ import annotations

import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedwinnow import catalogue
from fedwinnow.all_settings import Redo
from fedwinnow.data.load import understood
from fedwinnow.data.source import Source
from fedwinnow.errors import DataError
from fedwinnow.files import json_of
from fedwinnow.models.model import Shape
from fedwinnow.options import parse_spec
from fedwinnow.study.recipes import FOLDER
from fedwinnow.study.sweep import to_play
from fedwinnow.study.sweep_plan import Job, Plan

SMALL, LARGE = 32, 4  # how many small or large images a trial batch has: a few large ones take seconds
PATIENCE = 0.5  # seconds for the trial steps of one model
FEATURES = 1280  # numbers per image that the encoder `lite` makes
ENCODED_PER_SECOND = {False: 120, True: 12}  # images up to 64 pixels, and larger ones, as in docs/encoders.md
TEST_SHARE = 1.2  # training samples, and about a fifth as many test samples
HOW = (
    "Time of one run: the mean of the row's finished runs where there are some. Otherwise a training step on empty "
    "samples was timed on this machine just now, and multiplied by the steps of plain averaging (FedAvg) and by how "
    "much more than that the method computed in our own runs. Measuring and judging are left out; a busy machine takes "
    "longer."
)


@dataclass(frozen=True)
class RowCost:
    """What the runs of one row cost."""

    row: str
    columns: int
    runs: int  # that are left
    seconds: float | None  # of one run, on average; None for data of unknown size
    source: str  # how the seconds are known


@dataclass(frozen=True)
class PlanCost:
    """What a plan costs, row by row, and besides that the encoding of its data."""

    rows: tuple[RowCost, ...]
    encoding: float = 0.0  # seconds, once for all runs

    @property
    def seconds(self) -> float | None:
        """Of all runs that are left, one after the other; None if a row's are not known."""
        known = [row.runs * row.seconds for row in self.rows if row.seconds is not None]
        return sum(known) + self.encoding if len(known) == len(self.rows) else None


def cost_of(plan: Plan, device: str | None = None, redo: Redo = None) -> PlanCost:
    """The cost of the runs that are left, from finished runs of the row or else from a step of its model."""
    left, steps = {job.folder for job in to_play(plan, redo)}, Steps(device)
    work = tomllib.loads((FOLDER / "work.toml").read_text(encoding="utf-8"))
    rows = []
    for row in dict.fromkeys(job.row for job in plan.jobs):
        jobs = [job for job in plan.jobs if job.row == row]
        open_jobs = [job for job in jobs if job.folder in left]
        took = [seconds for job in jobs if job.folder not in left and (seconds := seconds_taken(job)) is not None]
        method = parse_spec(str(jobs[0].experiment.method))[0]
        factor = work.get(method, 1.0)
        if took:
            seconds, source = sum(took) / len(took), f"the mean of {len(took)} finished"
        else:
            plain = [steps.seconds(job) for job in open_jobs]
            known = [one for one in plain if one is not None]
            seconds = factor * sum(known) / len(known) if known and len(known) == len(plain) else None
            source = "as FedAvg" if factor == 1 else f"{factor:g} x FedAvg"
        rows.append(RowCost(row, len({job.scene for job in jobs}), len(open_jobs), seconds, source))
    open_jobs = [job for job in plan.jobs if job.folder in left]
    return PlanCost(tuple(rows), steps.encoding(open_jobs))


def seconds_taken(job: Job) -> float | None:
    """How long a finished run took; None if its folder does not say."""
    try:
        return float(json_of(job.folder / "summary.json")["cost"]["seconds"])
    except (DataError, KeyError, TypeError, ValueError):
        return None


class Steps:
    """Training steps that were timed, each model on each kind of data once."""

    def __init__(self, device: str | None) -> None:
        self.device = device
        self.sizes = tomllib.loads((FOLDER / "sizes.toml").read_text(encoding="utf-8"))
        self.known: dict[tuple[str, str, bool], float] = {}

    def size(self, job: Job) -> tuple[str, dict[str, Any], int] | None:
        """The name of a job's data, its shape and how many training samples there are; None if that is not known."""
        source = catalogue.make("data", understood(job.experiment.data))
        if not isinstance(source, Source) or source.name not in self.sizes:
            return None
        return source.name, self.sizes[source.name], source.train or self.sizes[source.name]["train"]

    def seconds(self, job: Job) -> float | None:
        """One run of plain averaging."""
        found = self.size(job)
        if found is None:
            return None
        name, size, train = found
        encoded, model = job.experiment.encoder is not None, str(job.experiment.model or "lenet")
        if (name, model, encoded) not in self.known:
            shape = Shape("rows", (FEATURES,), size["classes"]) if encoded else None
            shape = shape or Shape("images", tuple(size["shape"]), size["classes"])
            self.known[name, model, encoded] = seconds_per_sample(model, shape, self.device, job.experiment.batch_size)
        return samples_trained(job, train) * self.known[name, model, encoded]

    def encoding(self, jobs: Sequence[Job]) -> float:
        """Encoding all data once; what is in the cache already takes no time."""
        found = {
            self.size(job) is not None and str(job.experiment.data): self.size(job) for job in jobs if on_encoder(job)
        }
        total = 0.0
        for known in found.values():
            if known is not None:
                _, size, train = known
                total += train * TEST_SHARE / ENCODED_PER_SECOND[max(size["shape"][:2]) > 64]
        return total


def on_encoder(job: Job) -> bool:
    """Whether a run needs features."""
    return job.experiment.encoder is not None


def samples_trained(job: Job, train: int) -> float:
    """How many samples the model is trained on, counting repetitions."""
    experiment = job.experiment
    visits = experiment.rounds * max(1, round(experiment.participation * experiment.clients))
    return visits * experiment.epochs * train / experiment.clients


def seconds_per_sample(model: str, shape: Shape, device: str | None, batch_size: int) -> float:
    """The seconds of one training step on zeros, per sample; on images with a small batch, because that takes less."""
    import torch

    from fedwinnow.device import choose_device
    from fedwinnow.models.make_model import make_model

    chosen = choose_device(device)
    torch.set_num_threads(1)  # as in a run
    module = make_model(model, shape, 0).to(chosen)
    small = shape.kind == "images" and shape.smaller_side <= 32
    batch = shape.example(batch_size if shape.kind == "rows" else SMALL if small else LARGE).to(chosen)
    steps = torch.optim.SGD(module.parameters(), 0.01, momentum=0.5)
    labels = torch.zeros(len(batch), dtype=torch.int64, device=chosen)
    times: list[float] = []
    while len(times) < 2 or (times[-1] < PATIENCE and (len(times) < 10 or sum(times) < PATIENCE)):
        began = time.perf_counter()
        loss: Any = torch.nn.functional.cross_entropy(module(batch), labels)
        steps.zero_grad()
        loss.backward()
        steps.step()
        float(loss.detach())  # waits for a GPU
        times.append(time.perf_counter() - began)
    return min(times) / len(batch)  # the fastest step, because other programs may slow some down
