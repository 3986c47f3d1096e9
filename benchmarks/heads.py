"""Small heads on rows of 1,280 numbers, as encoders give them: gradients by hand against automatic ones."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.results import verdict
from fedwinnow.all_settings import SiteSettings
from fedwinnow.data.dataset import InputStep, Resident
from fedwinnow.device import keep_freed_memory
from fedwinnow.federation.client import Client
from fedwinnow.federation.method import find_method
from fedwinnow.mathematics.optimizers import Sgd
from fedwinnow.mathematics.payload import FlatModel
from fedwinnow.models.make_model import make_model
from fedwinnow.models.model import Shape

AIMS = {"linear": 2.5, "mlp": 3.0}
NUMBERS, CLASSES = 1280, 10
JOBS = [
    *((model, "fedavg", batch) for model in AIMS for batch in (8, 32, 50, 128)),
    *((model, method, 32) for model in AIMS for method in ("gce", "fedprox", "winnow")),
]

NOTE = """A difference of a thousandth is a unit of ReLU that rounding switches: of 100 clients at batch 8 one had it.
Automatic differentiation against itself, from weights that differ by 1e-7 of their size, had it in two, as large."""


@dataclass(frozen=True)
class Contest:
    """Sites whose models are trained both ways, one site after the other, so that a busy moment meets both."""

    model: str
    method: str
    batch: int
    rows: list[np.ndarray]  # of each site, scaled to length 8
    labels: list[np.ndarray]

    def client(self, site: int, model: FlatModel) -> Client:
        """A site before its training."""
        return Client(
            id=site,
            round=1,
            rounds=1,
            features=Resident(self.rows[site]),
            given=torch.from_numpy(self.labels[site]),
            classes=CLASSES,
            model=model,
            training=SiteSettings(epochs=1, batch_size=self.batch),
            optimizer=Sgd(lr=0.03, momentum=0.9),
            input_step=InputStep("rows", (), ()),
            generator=torch.Generator().manual_seed(site),
        )

    def seconds(self, turns: int) -> tuple[float, float, float]:
        """Automatic differentiation, by hand (both: the sum of each site's best turn), and the largest difference."""
        method, shape = find_method(self.method), Shape("rows", (NUMBERS,), CLASSES)
        models = [FlatModel(make_model(self.model, shape), fast_heads=fast) for fast in (False, True)]
        start, away = models[0].payload(), 0.0
        best = np.full((2, len(self.rows)), np.inf)
        for _ in range(turns):
            for site in range(len(self.rows)):
                for way, model in enumerate(models):
                    client = self.client(site, model)
                    train = method.train_plainly if self.method == "winnow" else method.train
                    began = time.thread_time()
                    train(client, start)
                    best[way, site] = min(best[way, site], time.thread_time() - began)
                away = max(away, (models[0].weights - models[1].weights).abs().max().item())
        usual, by_hand = best.sum(1)
        return float(usual), float(by_hand), away


def run(*, smallest: bool = False) -> str:
    """Ratios for two heads, several batch sizes and methods, as Markdown."""
    torch.set_num_threads(1)
    keep_freed_memory()
    clients, samples, turns, few = (2, 64, 1, 1) if smallest else (100, 500, 5, 2)
    generator = np.random.default_rng(0)
    rows = [generator.normal(size=(samples, NUMBERS)).astype(np.float32) for _ in range(clients)]
    rows = [8 * part / np.linalg.norm(part, axis=1, keepdims=True) for part in rows]
    labels = [generator.integers(0, CLASSES, samples) for _ in range(clients)]
    lines = [
        f"{clients} clients with {samples} rows of {NUMBERS:,} numbers, {CLASSES} classes, one epoch,",
        f"SGD 0.03/0.9, one thread; `linear` has {(NUMBERS + 1) * CLASSES:,} weights, `mlp` a hidden layer of 128. The",
        f"training of a client as a method does it, both ways in turns, the best of {turns} for each client",
        f"({few} in rows without an aim); milliseconds of the processor per client.",
        "",
        "| model | method | batch | autograd, ms | by hand, ms | ratio | aim | largest difference of a weight |",
        "|---|---|---:|---:|---:|---:|---|---:|",
    ]
    for model, method, batch in JOBS[::4] if smallest else JOBS:
        aimed = (method, batch) == ("fedavg", 32)
        usual, by_hand, away = Contest(model, method, batch, rows, labels).seconds(turns if aimed else few)
        aim = f"{AIMS[model]}: {verdict(usual / by_hand, AIMS[model])}" if aimed else ""
        lines.append(
            f"| {model} | {method} | {batch} | {usual / clients * 1e3:.2f} | {by_hand / clients * 1e3:.2f} "
            f"| {usual / by_hand:.2f} | {aim} | {away:.0e} |"
        )
    return "\n".join([*lines, "", NOTE])
