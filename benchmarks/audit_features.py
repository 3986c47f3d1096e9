"""The audit on frozen features against rivals that see all data in one place, on labels that people gave (CIFAR-10N).

    python -m benchmarks.audit_features [--train 25000] [--sites 10] [--columns worse random1 aggregate] [--seeds 0 1 2]

Rivals get the same features with the same scaling: logistic regression, cross-validated in three folds, and the share
of the nearest neighbours with another label; pooled over all sites, and per site. Nobody is told which labels are
wrong. Sites are dealt out IID, or by Dirichlet(0.3) over the true labels or over the given ones: that decides the
result, because a label that is rare at its site is mostly wrong in the second case and hidden in the third.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import fedwinnow
from benchmarks.audits import keep
from benchmarks.results import machine
from fedwinnow import catalogue
from fedwinnow.data.arrays import from_arrays
from fedwinnow.data.load import load
from fedwinnow.experiment.prepare import prepare
from fedwinnow.experiment.settings import Experiment
from fedwinnow.metrics.detection import auroc, average_precision
from fedwinnow.scene.partition import Partition, Population

STRENGTHS = (0.01, 0.03)  # C of the regression, both shown
NEIGHBOURS = (20, 50)
FOLDS = 3
DEALT = {"iid": "iid", "true": "dirichlet:alpha=0.3", "given": "dirichlet:alpha=0.3"}
MADE = "made"  # instead of people's labels: three in ten are wrong at random
HEAD = ["column", "seed", "dealt", "wrong", "who", "auroc", "average_precision"]


def site_of_rows(dealt: str, true: Any, given: Any, classes: int, sites: int, seed: int) -> Any:
    """The site of every sample, as a text."""
    rule = catalogue.make("partitions", DEALT[dealt])
    assert isinstance(rule, Partition)
    holdings = rule.split(Population(given if dealt == "given" else true, classes, sites, seed))
    found = np.empty(len(true), dtype="<U8")
    found[holdings.rows] = [f"site-{number}" for number in holdings.client]
    return found


def made(true: Any, classes: int) -> Any:
    """Labels of which three in ten are wrong."""
    luck = np.random.default_rng(0)
    return np.where(luck.random(len(true)) < 0.3, (true + luck.integers(1, classes, len(true))) % classes, true)


def regression(x: Any, y: Any, strength: float, classes: int) -> Any:
    """1 - the probability of the given label, by models that have not seen the sample."""
    from sklearn.linear_model import LogisticRegression

    fold, found = np.arange(len(y)) % FOLDS, np.full(len(y), 1 - 1 / classes)
    for number in range(FOLDS):
        train, held = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        if len(np.unique(y[train])) < 2:
            continue
        model = LogisticRegression(C=strength, max_iter=200).fit(x[train], y[train])
        chance = np.zeros((len(held), classes))
        chance[:, model.classes_] = model.predict_proba(x[held])
        found[held] = 1 - chance[np.arange(len(held)), y[held]]
    return found


def neighbours(x: Any, y: Any, count: int, classes: int) -> Any:
    """The share of the nearest other samples, by cosine, that have another label."""
    import torch

    rows = torch.from_numpy(x - x.mean(0))
    rows = rows / rows.norm(dim=1, keepdim=True).clamp(min=1e-12)
    labels, found, most = torch.from_numpy(y), [], min(count, len(y) - 1)
    for start in range(0, len(y), 1000):
        alike = rows[start : start + 1000] @ rows.t()
        alike[torch.arange(len(alike)), torch.arange(start, start + len(alike))] = -2  # not its own neighbour
        near = labels[alike.topk(most, dim=1).indices]
        found.append((near != labels[start : start + len(alike), None]).double().mean(1))
    return torch.cat(found).numpy()


def per_site(score: Callable[..., Any], x: Any, y: Any, sites: Any, option: float, classes: int) -> Any:
    """The same score computed by each site from its own samples."""
    found = np.empty(len(y))
    for name in np.unique(sites):
        mine = np.flatnonzero(sites == name)
        found[mine] = score(x[mine], y[mine], option, classes) if len(mine) > FOLDS else 0.5
    return found


def rivals(x: Any, y: Any, classes: int, sites: Any | None) -> Iterator[tuple[str, Any]]:
    """The scores of every rival: pooled, or per site."""
    where = "pooled" if sites is None else "per site"
    for name, score, options in (("regression", regression, STRENGTHS), ("neighbours", neighbours, NEIGHBOURS)):
        for option in options:
            found = score(x, y, option, classes) if sites is None else per_site(score, x, y, sites, option, classes)
            yield f"{name} {option:g}, {where}", found


def main(words: list[str] | None = None) -> None:
    """Compare, print a table, and write a CSV file if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="cifar10n", help="images with labels that people gave, or others")
    parser.add_argument("--train", type=int, default=25000, help="how many images")
    parser.add_argument("--sites", type=int, default=10)
    parser.add_argument(
        "--columns", nargs="+", default=["worse", "random1", "aggregate"], help=f"human labels, or {MADE}"
    )
    parser.add_argument("--dealt", nargs="+", default=list(DEALT), choices=list(DEALT))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=None, help="of the audit; none: its default")
    parser.add_argument("--encoder", default="lite")
    parser.add_argument("--csv", type=Path, help="a file that gets a line per measurement, added at its end")
    parser.add_argument("--smallest", action="store_true", help="the least work: does it run? Its numbers mean nothing")
    asked = parser.parse_args(words)
    if asked.smallest:
        vars(asked).update(data="digits", train=60, sites=2, columns=[MADE], seeds=[0], rounds=1, encoder="lite")
    print(machine())
    print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}")
    train = load(asked.data).train
    images, true = train.features.take(np.arange(asked.train)), train.true
    true = (train.labels if true is None else true)[: asked.train]
    classes = int(true.max()) + 1
    for column in asked.columns:
        given = made(true, classes) if column == MADE else train.human[column][: asked.train]
        wrong = given != true
        data = from_arrays(images, given)
        stage = prepare(Experiment(data=data, encoder=asked.encoder, clients=asked.sites, test=0.0))
        x = stage.judged.features.take(np.arange(asked.train))
        scores = [("pooled", None, name, found) for name, found in rivals(x, given, classes, None)]
        for seed in asked.seeds:
            for dealt in asked.dealt:
                sites = site_of_rows(dealt, true, given, classes, asked.sites, seed)
                with tempfile.TemporaryDirectory() as place:
                    more = {} if asked.rounds is None else {"rounds": asked.rounds}
                    found = fedwinnow.audit(
                        images, given, sites=sites, seed=seed, encoder=asked.encoder, out=Path(place) / "audit", **more
                    )
                scores.append((dealt, seed, "the audit", found.score))
                scores += [(dealt, seed, name, one) for name, one in rivals(x, given, classes, sites)]
        for dealt, seed, who, score in scores:
            known = ~np.isnan(score)
            figures = auroc(score[known], wrong[known]), average_precision(score[known], wrong[known])
            row = (column, seed, dealt, f"{wrong.mean():.4f}", who, *(f"{one:.4f}" for one in figures))
            print(f"| {' | '.join(map(str, row))} |", flush=True)
            keep(asked.csv, dict(zip(HEAD, row, strict=True)))


if __name__ == "__main__":
    main()
