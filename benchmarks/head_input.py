"""Heads on frozen features without tuning: what one learning rate costs against the best of six, by data set.

    python -m benchmarks.head_input [--sets development|report] [--lengths 4 8 16] [--csv results/head-input.csv]

Plain FedAvg plays through the real federation: 10 IID sites, all in every round, 10 rounds of 5 epochs, batch 32.
The order of the wrong labels is that of the judge `mean`; the accuracy is that of the last round on test samples with
true labels. Lengths of a row are compared on the development sets; the report has other samples, texts and tables.
The figures of a learning rate are means over seeds, and the best of six rates is the best of these means.

Images come from the folders of FEDWINNOW_DATA (CIFAR-10 with CIFAR-10N, Fashion-MNIST), tables from its folder
`tables` (CSV files with the columns id and label) and from scikit-learn, texts from the source of installed packages. A
set whose files are not there is left out, and named.
"""

from __future__ import annotations

import argparse
import ast
import csv
import dataclasses
import importlib.util
import itertools
import os
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any
from unittest import mock

import numpy as np
import torch

from benchmarks.audits import keep
from benchmarks.results import machine
from fedwinnow.all_settings import SiteSettings
from fedwinnow.auditing.audit_settings import AuditAsked
from fedwinnow.data.arrays import from_arrays
from fedwinnow.data.dataset import Dataset
from fedwinnow.data.load import load
from fedwinnow.encoders import head_input
from fedwinnow.errors import FedwinnowError, FedwinnowWarning, RunError
from fedwinnow.experiment.play import Execution, Player, play_stage
from fedwinnow.experiment.prepare import Stage, prepare
from fedwinnow.experiment.run_folder import RunFolder
from fedwinnow.experiment.settings import Experiment
from fedwinnow.metrics.detection import auroc
from fedwinnow.setting import settings_in

RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
TRIED = [f"sgd:lr={rate},momentum=0.9" for rate in RATES]
DEFAULTS = {
    "audit": settings_in(AuditAsked)["optimizer"].default,
    "run": settings_in(SiteSettings)["optimizer"].default,
}
HEADS = ("linear", "mlp")
DEMANDS = {"auroc": 0.015, "accuracy": 0.03}  # the most that the audit's optimiser may lose
DIVERGED = {"auroc": 0.5, "accuracy": 0.0}
JUDGE = "mean:prior=false"
NOISE = "constant:rate=0.3"  # where nobody knows the errors that people make
TRAIN, TEST = 2000, 1000
FEW = 1000  # samples; smaller sets are played with more seeds, because so few test samples say little
TEXTS = {
    "development": ("dask", "huggingface_hub", "networkx", "onnxscript", "setuptools", "sqlalchemy", "sympy", "torch"),
    "report": ("flwr", "fontTools", "matplotlib", "mypy", "numpy", "pip", "scipy", "sklearn"),
}
SHORTEST = 60  # letters of a docstring that counts
ENOUGH = 900  # docstrings of a package; of these, those that are used are drawn


@dataclass(frozen=True)
class Case:
    """One data set with an encoder."""

    name: str
    encoder: str
    data: Callable[[], Any]
    noise: str | None = NOISE  # None: the data knows its errors


def cases(part: str) -> list[Case]:
    """The sets of one part; no sample is in both."""
    if part == "smallest":
        return [Case("digits", "rows", lambda: rows_of("digits", 120))]
    encoders = ("words",) if part == "development" else ("words", "tfidf")
    texts = [Case(f"docstrings, {name}", name, lambda: docstrings(TEXTS[part])) for name in encoders]
    if part == "development":
        return [
            Case("CIFAR-10N worse", "lite", lambda: human_labels("worse", 0), None),
            *texts,
            Case("segment", "rows", lambda: table("segment")),
            Case("digits", "rows", lambda: rows_of("digits")),
        ]
    return [
        Case("CIFAR-10N random1", "lite", lambda: human_labels("random1", 20_000), None),
        Case("CIFAR-10, 30 %", "lite", lambda: human_labels("clean", 30_000)),
        Case("Fashion-MNIST", "lite", lambda: images("fashion-mnist")),
        *texts,
        *(Case(name, "rows", lambda name=name: table(name)) for name in ("dermatology", "soybean", "hypothyroid")),
        *(Case(name, "rows", lambda name=name: rows_of(name)) for name in ("wine", "breast_cancer")),
    ]


def human_labels(column: str, start: int) -> Dataset:
    """Images of CIFAR-10 from one place on, with labels that people gave; the test images are those that follow."""
    train = load("cifar10n").train
    rows = np.arange(start, start + TRAIN)
    true = train.labels if train.true is None else train.true
    given = true if column == "clean" else train.human[column]
    take, asked = train.features.take, rows + TRAIN
    return from_arrays(
        take(rows), given[rows], true=true[rows], x_test=take(asked)[:TEST], y_test=true[asked][:TEST], name="images"
    )


def images(name: str) -> Dataset:
    """The first images of a set."""
    data = load(name)
    assert data.test is not None
    first, asked = np.arange(TRAIN), np.arange(TEST)
    return from_arrays(
        data.train.features.take(first),
        data.train.labels[first],
        x_test=data.test.features.take(asked),
        y_test=data.test.labels[asked],
        name=name,
    )


def table(name: str) -> Dataset:
    """A table of the folder `tables`, without a file's order: the test part is drawn by the seed."""
    for place in os.environ.get("FEDWINNOW_DATA", "").split(os.pathsep):
        path = Path(place) / "tables" / f"{name}.csv"
        if place and path.exists():
            return load({"kind": "csv", "path": str(path), "label": "label", "id": "id"})
    raise FileNotFoundError(f"tables/{name}.csv is in no folder of FEDWINNOW_DATA")


def rows_of(name: str, most: int = TRAIN) -> Dataset:
    """A table that comes with scikit-learn."""
    from sklearn import datasets

    found = getattr(datasets, f"load_{name}")()
    return from_arrays(found.data[:most].astype(np.float32), found.target[:most], name=name)


def docstrings(packages: tuple[str, ...]) -> Dataset:
    """Docstrings of installed packages, as many of each; the label is the package."""
    each = (TRAIN + TEST) // len(packages)
    luck = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "docstrings.csv"
        with path.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(["text", "package"])
            for package in packages:
                found = sorted(docstrings_of(package))
                writer.writerows([found[place], package] for place in luck.permutation(len(found))[:each])
        return load({"kind": "csv", "path": str(path), "label": "package", "text": "text"})


@cache
def docstrings_of(package: str) -> set[str]:
    """Docstrings in the source of a package, enough of them; its name, which is the label, is taken out."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(f"the package {package} is not installed")
    found: set[str] = set()
    files = sorted(Path(spec.submodule_search_locations[0]).rglob("*.py"))
    for place in np.random.default_rng(0).permutation(len(files)):
        path = files[place]
        if len(found) >= ENOUGH:
            break
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # sources have escapes that newer versions of Python warn of
                tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                text = (ast.get_docstring(node) or "").replace(package, " ")
                if len(text) >= SHORTEST:
                    found.add(text)
    return found


def stage_of(case: Case, data: Any, head: str, seed: int, chosen: argparse.Namespace) -> Stage:
    """Sites, samples and head of a federation, before it has an optimiser."""
    experiment = Experiment(
        data=data,
        encoder=case.encoder,
        clients=chosen.sites,
        partition="iid",
        noise=case.noise,
        test=0.25 if data.test is None else 0.0,
        method="fedavg",
        model=head,
        rounds=chosen.rounds,
        epochs=chosen.epochs,
        batch_size=32,
        participation=1.0,
        eval_every=1000,
        seed=seed,
    )
    return prepare(experiment)


def measure(stage: Stage, optimizer: str) -> dict[str, float]:
    """Play one federation; the order of its wrong labels, and its accuracy."""
    stage = dataclasses.replace(stage, experiment=dataclasses.replace(stage.experiment, optimizer=optimizer))
    with tempfile.TemporaryDirectory() as folder:
        place, execution = RunFolder(Path(folder) / "run"), Execution(judge=JUDGE, checkpoint_every=1000)
        with place.locked():
            try:
                summary = play_stage(stage, place, execution)
            except RunError:  # the weights grew without bound
                return DIVERGED
            player = Player(stage, place, execution, ())
            try:
                player.restore()
                asked = tuple(np.flatnonzero(stage.scene.holdings.sizes).tolist())
                replies = dict(player.federation.ask_all("audit", asked))
            finally:
                player.federation.backend.close()
    score, wrong = np.zeros(len(stage.scene.given)), stage.scene.wrong
    for site, reply in replies.items():
        score[stage.scene.holdings.of(site)] = reply["score"].numpy()
    assert wrong is not None
    return {"auroc": auroc(score, wrong) or 0.0, "accuracy": float(summary["last"]["accuracy"])}


def figures_of(part: str, chosen: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A line per federation."""
    known = read_lines(chosen.csv)
    for case in cases(part):
        try:
            data = case.data()
        except (FileNotFoundError, FedwinnowError) as problem:
            print(f"left out: {case.name} ({problem})", flush=True)
            continue
        seeds = chosen.seeds_of_small if len(data.train) < FEW else chosen.seeds
        for length, head, seed in itertools.product(chosen.lengths, chosen.heads, range(seeds)):
            stage = None
            for optimizer in optimizers(part):
                line = {"part": part, "set": case.name, "encoder": case.encoder, "length": f"{length:g}"}
                line |= {"head": head, "optimizer": optimizer, "seed": str(seed)}
                if (done := known.get(tuple(line.values()))) is None:
                    with mock.patch.object(head_input, "LENGTH", length):
                        stage = stage or stage_of(case, data, head, seed, chosen)
                        done = measure(stage, optimizer)
                    keep(chosen.csv, line | {key: f"{value:.4f}" for key, value in done.items()})
                yield line | done


def optimizers(part: str) -> list[str]:
    """The six rates, and the defaults of `audit` and `run`."""
    return list(dict.fromkeys((*(TRIED[-1:] if part == "smallest" else TRIED), *DEFAULTS.values())))


def read_lines(path: Path | None) -> dict[tuple[str, ...], dict[str, float]]:
    """The measurements that a file has already, so that an interrupted benchmark goes on."""
    if path is None or not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as stream:
        lines = list(csv.DictReader(stream))
    names = ("part", "set", "encoder", "length", "head", "optimizer", "seed")
    return {tuple(line[name] for name in names): {key: float(line[key]) for key in DEMANDS} for line in lines}


def tables(lines: list[dict[str, Any]]) -> Iterator[str]:
    """Per length: what every set loses with the default optimisers against the best of six rates, and the worst."""
    means: dict[tuple[str, ...], dict[str, float]] = {}
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        groups[line["length"], line["head"], line["set"], line["optimizer"]].append(line)
    for key, several in groups.items():
        means[key] = {name: mean(line[name] for line in several) for name in DEMANDS}
    for length in dict.fromkeys(key[0] for key in means):
        for head in dict.fromkeys(key[1] for key in means):
            yield f"\n{head}, rows of length {length}:\n"
            yield (
                "| set | seeds | best AUROC (rate) | audit's | loss | best accuracy (rate) | audit's | loss | "
                "loss of `run`'s: AUROC, accuracy |"
            )
            yield "|---|---:|---|---:|---:|---|---:|---:|---|"
            worst = {(who, name): (-1.0, "") for who in DEFAULTS for name in DEMANDS}
            for title in dict.fromkeys(key[2] for key in means if key[:2] == (length, head)):
                by_optimizer = {key[3]: value for key, value in means.items() if key[:3] == (length, head, title)}
                tried = {one: by_optimizer[one] for one in TRIED if one in by_optimizer}
                cells = [title, str(len(groups[length, head, title, DEFAULTS["audit"]]))]
                losses = {}
                for name in DEMANDS:
                    best = max(tried, key=lambda one, name=name: tried[one][name])
                    for who, optimizer in DEFAULTS.items():
                        losses[who, name] = tried[best][name] - by_optimizer[optimizer][name]
                        worst[who, name] = max(worst[who, name], (losses[who, name], title))
                    rate = best.partition("lr=")[2].partition(",")[0]
                    cells += [f"{tried[best][name]:.3f} ({rate})", f"{by_optimizer[DEFAULTS['audit']][name]:.3f}"]
                    cells.append(f"{losses['audit', name]:.3f}")
                cells.append(f"{losses['run', 'auroc']:.3f}, {losses['run', 'accuracy']:.3f}")
                yield f"| {' | '.join(cells)} |"
            for name, most in DEMANDS.items():
                loss, title = worst["audit", name]
                word = "reached" if loss <= most else "missed"
                other, where = worst["run", name]
                yield (
                    f"\nworst loss of {name} with {DEFAULTS['audit']}: {loss:.3f} ({title}); asked for at most {most}: "
                    f"{word}. With {DEFAULTS['run']}: {other:.3f} ({where})."
                )


def main(words: list[str] | None = None) -> None:
    """Measure, print tables, and write a CSV file if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", default="report", choices=["development", "report"])
    parser.add_argument("--lengths", nargs="+", type=float, default=[head_input.LENGTH], help="of a scaled row")
    parser.add_argument("--heads", nargs="+", default=list(HEADS))
    parser.add_argument("--sites", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds")
    parser.add_argument("--seeds-of-small", type=int, default=3, help=f"the same for sets of fewer than {FEW} samples")
    parser.add_argument("--csv", type=Path, help="gets a line per measurement; those that it has are not made again")
    parser.add_argument("--smallest", action="store_true", help="the least work: does it run? Its numbers mean nothing")
    chosen = parser.parse_args(words)
    if chosen.smallest:
        vars(chosen).update(sets="smallest", sites=2, rounds=1, epochs=1, seeds=1, seeds_of_small=1, heads=["linear"])
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FedwinnowWarning)
    print(machine())
    print("\n".join(tables(list(figures_of(chosen.sets, chosen)))))


if __name__ == "__main__":
    main()
