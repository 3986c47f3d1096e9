"""What the benchmarks of the audit share: the scenes, the flags, and the training."""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from fedwinnow.experiment.settings import Experiment

SCENES = {"iid": "iid", "Dirichlet 0.3": "dirichlet:alpha=0.3,minimum=20", "two-class shards": "shards:per_client=2"}
NOISES = {
    "uniform": "uniform:share=0.5,low=0.2,high=0.3",
    "pair": "uniform:share=0.5,low=0.2,high=0.3,flip=pair",
}
MOMENTUM = 0.9


def flags(program: str, description: str | None) -> argparse.ArgumentParser:
    """The flags that all of them have."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{program}", description=description)
    parser.add_argument("--data", default="fashion-mnist")
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--train", type=int, default=3000, help="training samples; 0: all that the data has")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=0.03)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--csv", type=Path, help="a file that gets a line per measurement, added at its end")
    parser.add_argument("--smallest", action="store_true", help="the least work: does it run? Its numbers mean nothing")
    return parser


def parsed(parser: argparse.ArgumentParser, words: list[str] | None) -> argparse.Namespace:
    """What was chosen; with --smallest, the least work and the first of every list."""
    chosen = parser.parse_args(words)
    if chosen.smallest:
        lists = {name: value[:1] for name, value in vars(chosen).items() if isinstance(value, list)}
        vars(chosen).update(lists, data="digits:train=120", train=0, rounds=1, epochs=1, clients=2)
    return chosen


def experiment(
    chosen: argparse.Namespace, scene: str, noise: str | None, method: str = "fedavg", seed: int = 0
) -> Experiment:
    """The training of an audit on one of the scenes."""
    return Experiment(
        data=f"{chosen.data}:train={chosen.train},test=500" if chosen.train else chosen.data,
        test=0.0,
        clients=chosen.clients,
        partition=SCENES[scene],
        noise=noise,
        method=method,
        model=chosen.model,
        rounds=chosen.rounds,
        epochs=chosen.epochs,
        batch_size=chosen.batch_size,
        participation=1.0,
        optimizer=f"sgd:lr={chosen.learning_rate},momentum={MOMENTUM}",
        eval_every=1000,
        seed=seed,
    )


def keep(path: Path | None, line: dict[str, Any]) -> None:
    """Add a line to a file of measurements, at once, so that an interrupted benchmark loses nothing."""
    if path is None:
        return
    new = not path.exists()
    with path.open("a", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(line), lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(line)


def spread(values: list[float]) -> str:
    """The mean, and the sample deviation where there are several."""
    if not values:
        return "–"
    return f"{mean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "")
