"""What it costs that checkpoints are on the disk: `python -m benchmarks.checkpoint`.

Median milliseconds of a checkpoint, and the same without waiting for the disk, in turns, for a small and a large model.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path

from fedwinnow.federation.flat import FlatModel
from fedwinnow.models.choose import make_model
from fedwinnow.models.shape import Shape
from fedwinnow.store import RunFolder

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


def main() -> None:
    """Print a line per model."""
    fsync = os.fsync
    for name, shape, count in (
        ("mlp", Shape("images", (8, 8, 1), 10), 60),
        ("resnet18", Shape("images", (32, 32, 3), 10), 5),
    ):
        model = FlatModel(make_model(name, shape))
        durable, other = [], []
        for _ in range(3):
            os.fsync = fsync
            durable.append(milliseconds(model, count))
            os.fsync = lambda handle: None
            other.append(milliseconds(model, count))
        os.fsync = fsync
        found, without = statistics.median(durable), statistics.median(other)
        print(
            f"{name}, {len(model.payload()['weights']):,} parameters: {found:.1f} ms, {without:.1f} ms without waiting"
        )


if __name__ == "__main__":
    main()
