"""Scenes of a million samples: every partition, and every noise with every flip but `instance`, which trains networks.

The unit is one `np.argsort` of the labels, so that the numbers mean the same on every machine.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.results import paired
from fedwinnow import catalogue
from fedwinnow.data.dataset import Dataset, Resident, Samples
from fedwinnow.randomness import uniforms
from fedwinnow.scene.noise import Ground, RateNoise, make_noise
from fedwinnow.scene.partition import Partition, Population

SAMPLES, FEWEST = 1_000_000, 2_000
CLASSES = 10
CLIENTS = (1_000, 10_000)
REPEATS = 5
AIM = 30  # times one argsort
# With many clients the smallest share of one Dirichlet draw is no sample at all, which is an error unless allowed.
SETTINGS = {"quantity": "quantity:minimum=0"}


def labels_only(count: int) -> Dataset:
    """A data set of labels; its features take no work, because no rule looks at them."""
    labels = (uniforms(0, "benchmark", 0, np.arange(count)) * CLASSES).astype(np.int64)
    samples = Samples(
        Resident(np.zeros((count, 1), np.uint8)),
        labels,
        np.arange(count),
        sites=np.array([f"site-{number:03d}" for number in range(1000)])[np.arange(count) % 1000],
        human={"people": np.roll(labels, 1)},
    )
    return Dataset("labels", "rows", tuple(map(str, range(CLASSES))), samples)


def noise_specs(folder: Path, clients: int) -> Iterator[str]:
    """Every noise, with every flip where it takes one."""
    rates = folder / f"rates-{clients}.csv"
    rates.write_text("\n".join(["0.4"] * clients), encoding="utf-8")
    matrix = folder / "matrix.csv"
    np.savetxt(matrix, np.full((CLASSES, CLASSES), 1 / CLASSES), delimiter=",")
    required = {
        "per_client": f"path={rates.as_posix()}",
        "human": "column=people",
        "matrix": f"file={matrix.as_posix()}",
    }
    extra = {"asymmetric": "map=cifar10", **required}
    for noise, entry in catalogue.entries("noises").items():
        first = [required[noise]] if noise in required else []
        if not issubclass(entry.load(), RateNoise):
            yield ":".join([noise, *first])
            continue
        for flip in catalogue.entries("flips"):
            if flip != "instance":
                yield f"{noise}:" + ",".join([*first, f"flip={flip}", *([extra[flip]] if flip in extra else [])])


def run(*, smallest: bool = False) -> str:
    """Measure everything; a Markdown table of ratios, slowest first."""
    count, numbers, repeats = (FEWEST, (10,), 1) if smallest else (SAMPLES, CLIENTS, REPEATS)
    dataset = labels_only(count)
    labels = dataset.train.labels
    found: list[tuple[float, float, str, int]] = []

    def measure(what: str, clients: int, work: partial[object]) -> None:
        seconds, unit = paired(work, partial(np.argsort, labels), repeats)
        found.append((seconds / unit, seconds, what, clients))

    with tempfile.TemporaryDirectory() as folder:
        for clients in numbers:
            population = Population(labels, CLASSES, clients, 0, dataset.train.sites)
            for name in catalogue.entries("partitions"):
                if name == "column" and clients != numbers[0]:
                    continue  # the data says how many sites there are
                spec = SETTINGS.get(name, name)
                rule = catalogue.make("partitions", spec)
                assert isinstance(rule, Partition)
                measure(spec, clients, partial(rule.split, population))
            even = catalogue.make("partitions", "iid")
            assert isinstance(even, Partition)
            holdings = even.split(population)
            ground = Ground(dataset, holdings, labels[holdings.rows], 0)
            for spec in noise_specs(Path(folder), clients):
                measure(spec.replace(f"{folder}/", ""), clients, partial(make_noise(spec).apply, ground))
    return table(found, count, repeats)


def table(found: list[tuple[float, float, str, int]], count: int, repeats: int) -> str:
    """The measurements as Markdown."""
    largest = max(found)
    lines = [
        f"{count:,} samples of {CLASSES} classes; the time of each rule against one `np.argsort` of the labels,",
        f"medians of {repeats} taken in turns.",
        "",
        f"Largest ratio: {largest[0]:.1f} ({largest[2]}, {largest[3]:,} clients); aim: below {AIM}.",
        "",
        "| rule | clients | ratio | seconds |",
        "|---|---:|---:|---:|",
    ]
    lines += [
        f"| `{what}` | {clients:,} | {ratio:.1f} | {seconds:.3f} |"
        for ratio, seconds, what, clients in sorted(found, reverse=True)
    ]
    return "\n".join(lines)
