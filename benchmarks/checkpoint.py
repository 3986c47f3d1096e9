"""What it costs that checkpoints are on the disk: `python -m benchmarks checkpoint`."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path

from fedwinnow.experiment.run_folder import RunFolder
from fedwinnow.mathematics.payload import FlatModel
from fedwinnow.models.make_model import make_model
from fedwinnow.models.model import Shape

MODELS = (("mlp", Shape("images", (8, 8, 1), 10), 60), ("resnet18", Shape("images", (32, 32, 3), 10), 5))
FACTS = {"costs": {}, "memory": {}, "vault": {}, "ledger": {}, "set_aside": {}}


def milliseconds(model: FlatModel, checkpoints: int) -> float:
    """The median of so many checkpoints, each after a line of a round."""
    weights, times = model.payload(), []
    with tempfile.TemporaryDirectory(dir=".") as place:
        folder = RunFolder(Path(place))
        for number in range(1, checkpoints + 1):
            folder.append_round({"round": number})
            began = time.perf_counter()
            folder.save_state(model, weights, {}, FACTS | {"round": number})
            times.append(time.perf_counter() - began)
    return 1000 * statistics.median(times)


def run(*, smallest: bool = False) -> str:
    """A line per model, as Markdown."""
    lines = [
        "Median milliseconds of a checkpoint, on the disk and without waiting for it, in turns.",
        "At most one is written per second.",
        "",
        "| model | parameters | durable, ms | without waiting, ms | ratio |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, shape, count in MODELS[:1] if smallest else MODELS:
        model = FlatModel(make_model(name, shape))
        found, without = in_turns(model, 1 if smallest else count, 1 if smallest else 3)
        size = len(model.payload()["weights"])
        lines.append(f"| {name} | {size:,} | {found:.1f} | {without:.1f} | {found / without:.1f} |")
    return "\n".join(lines) + "\n"


def in_turns(model: FlatModel, checkpoints: int, turns: int) -> tuple[float, float]:
    """Milliseconds with and without waiting for the disk."""
    fsync, durable, other = os.fsync, [], []
    try:
        for _ in range(turns):
            os.fsync = fsync
            durable.append(milliseconds(model, checkpoints))
            os.fsync = lambda handle: None
            other.append(milliseconds(model, checkpoints))
    finally:
        os.fsync = fsync
    return statistics.median(durable), statistics.median(other)
