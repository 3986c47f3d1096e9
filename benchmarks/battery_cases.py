"""The cases of the battery: data with known truth at five sites, and what was done to its labels.

A case is named `data/errors/dealt`: `digits/uniform10/lot` has one label in ten wrong, and five sites by lot;
`dirichlet` deals the true classes out unevenly, `given` the given labels. The made data (`coin80`, `age`, ...) has
right labels that are hard or impossible to predict: no rule can tell these from wrong ones, so nothing may be claimed
there.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwinnow import catalogue
from fedwinnow.data.arrays import from_arrays
from fedwinnow.data.dataset import Dataset, Samples
from fedwinnow.data.load import load
from fedwinnow.data.published_files import data_folders
from fedwinnow.data.source_files import cache_folder
from fedwinnow.errors import DataError
from fedwinnow.experiment.prepare import prepare
from fedwinnow.experiment.settings import Experiment
from fedwinnow.files import write_text
from fedwinnow.scene.partition import Partition, Population

Ints = NDArray[np.int64]
SHARES = (0.42, 0.28, 0.17, 0.09, 0.04)  # of the samples, per site
SLOPPY_SITE, SLOPPY, TIDY = 1, 0.4, 0.03  # the rates of wrong labels at one site, and at the others
MOST = 2000  # samples of a case
PACKAGES = ("torch", "sympy", "matplotlib", "sklearn", "scipy", "networkx", "sqlalchemy", "numpy")
OTHER_PACKAGES = ("dask", "mpmath", "distributed", "hypothesis", "pydantic", "onnx", "setuptools", "flwr")
LOT, GIVEN = "lot", "given"
DIRICHLET = "dirichlet:alpha=0.5,minimum=20"


@dataclass(frozen=True)
class Case:
    """One case; everything in it follows from its name and a seed."""

    data: str
    errors: str
    dealt: str = "lot"

    def __post_init__(self) -> None:
        """Which site is sloppy cannot follow from labels that follow from the site."""
        if self.dealt == GIVEN and self.errors == "sloppy":
            raise ValueError("errors of a sloppy site need the sites first; deal them out by true labels or by lot.")

    @property
    def name(self) -> str:
        """The name that tables and `--only` use."""
        return f"{self.data}/{self.errors}/{self.dealt}"

    @property
    def encoder(self) -> str | None:
        """The frozen encoder that the case is audited with."""
        return ENCODERS.get(self.data)


ENCODERS = {"cifar10": "lite", "cifar10n": "lite", "words": "words", "tfidf": "tfidf"}
ENCODERS |= {"cifar10-other": "lite", "words-other": "words"}
MADE_WITH_ERRORS = ("coin80", "age", "gauss10", "gauss20", "six")
ERRORS = ("uniform10", "none", "sloppy", "uniform30", "conf10", "uniform5", "conf30")
SKEWED = ("digits", "segment", "fashion")
# What small or dear sets leave out: 150 rows say little about one error in twenty, and texts are slow.
LEFT_OUT = {
    "iris": ("uniform5", "uniform30", "conf10", "conf30", "sloppy"),
    "wine": ("uniform5", "uniform30", "conf10", "conf30"),
    "cancer": ("conf10", "conf30"),  # two classes: the same as uniform
    "dermatology": ("uniform5", "conf30"),
    "soybean": ("uniform5", "conf30"),
    "hypothyroid": ("uniform5", "conf10", "conf30"),
    "words": ("uniform5", "conf30"),
    "tfidf": ("uniform5", "conf30"),
}


def all_cases() -> list[Case]:
    """Every case, the telling ones first."""
    found = [Case(data, "none") for data in MADE]
    found += [Case(data, errors) for data in MADE_WITH_ERRORS for errors in ("uniform10", "sloppy")]
    for errors in ERRORS:
        found += [Case(data, errors) for data in REAL if errors not in LEFT_OUT.get(data, ())]
    found += [Case(data, errors, "dirichlet") for data in SKEWED for errors in ("none", "uniform10", "sloppy")]
    return [*found, Case("cifar10n", "aggregate"), Case("cifar10n", "worse")]


def development_cases() -> list[Case]:
    """Cases to choose a rule by: other samples where there are enough, and other rates; run them with other seeds."""
    errors = ("none", "uniform10", "conf10", "conf5", "uniform5", "conf20")
    found = [
        Case(data, kind) for data in ("fashion-other", "cifar10-other", "words-other", "clouds") for kind in errors
    ]
    return found + [Case(data, kind) for data in ("digits", "segment") for kind in ("conf15", "uniform15", "conf5")]


# --- data ----------------------------------------------------------------------------------------------------------


def of_scikit(name: str) -> Callable[[], Dataset]:
    """A small set that scikit-learn brings along."""

    def read() -> Dataset:
        from sklearn import datasets

        found = getattr(datasets, f"load_{name}")()
        return from_arrays(standardised(found.data), found.target, name=name)

    return read


def of_table(name: str) -> Callable[[], Dataset]:
    """A table in the folder `tables` of a data folder."""

    def read() -> Dataset:
        paths = [folder / "tables" / f"{name}.csv" for folder in data_folders()]
        path = next((path for path in paths if path.exists()), None)
        if path is None:
            raise DataError(
                f"{name}.csv is in none of {', '.join(map(str, paths))}. Name its folder in FEDWINNOW_DATA."
            )
        return load(f"csv:path={path},label=label,id=id")

    return read


def of_fashion(start: int = 0) -> Callable[[], Dataset]:
    """Fashion-MNIST as rows of 14 x 14 numbers: as pictures an audit of all cases would take a day."""

    def read() -> Dataset:
        train = load("fashion-mnist").train
        rows = np.random.RandomState(7).permutation(len(train))[start : start + 2 * MOST]
        pictures = train.features.take(rows).reshape(-1, 14, 2, 14, 2).astype(np.float64).mean((2, 4))
        return from_arrays(standardised(pictures.reshape(len(rows), -1)), train.labels[rows], name="fashion")

    return read


def of_cifar(name: str, start: int = 0) -> Callable[[], Dataset]:
    """The first CIFAR-10 images; CIFAR-10N has labels that people gave beside them."""
    return lambda: rows_of(load(name), np.arange(start, start + 2 * MOST))


def rows_of(dataset: Dataset, rows: Ints) -> Dataset:
    """The same data with fewer training samples."""
    return dataclasses.replace(dataset, train=dataset.train.subset(rows), test=None)


def of_docstrings(packages: tuple[str, ...] = PACKAGES) -> Callable[[], Dataset]:
    """What eight installed packages say about their functions; the class is the package, whose name is taken out."""

    def read() -> Dataset:
        lines = ["text,label"]
        for package in packages:
            for text in sorted(docstrings(package))[: MOST // 4]:
                lines.append(f'"{text}",{package}')
        path = cache_folder() / f"battery-docstrings{'' if packages == PACKAGES else '-other'}.csv"
        write_text(path, "\n".join(lines) + "\n")
        return load(f"csv:path={path},label=label,text=text")

    return read


def docstrings(package: str) -> set[str]:
    """The beginnings of the docstrings in a package, by lot."""
    plan = importlib.util.find_spec(package)
    if plan is None or plan.origin is None:
        raise DataError(f"the package {package} is not installed; its texts belong to this case.")
    files = sorted(Path(plan.origin).parent.rglob("*.py"))
    order = np.random.RandomState(7).permutation(len(files))
    found: set[str] = set()
    for place in order.tolist():
        found |= set(texts_in(files[place], package))
        if len(found) >= MOST // 2:
            break
    chosen = sorted(found)
    return {chosen[place] for place in np.random.RandomState(7).permutation(len(chosen))[: MOST // 4].tolist()}


def texts_in(path: Path, package: str) -> Iterator[str]:
    """The docstrings of one file, one line each, without quotes."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            text = " ".join((ast.get_docstring(node) or "").replace('"', " ").replace(package, " ").split())[:200]
            if len(text) >= 40:
                yield text


def standardised(x: Any) -> NDArray[np.float32]:
    """Columns of mean 0 and deviation 1, cut at 6 deviations."""
    x = np.asarray(x, np.float64)
    return np.clip((x - x.mean(0)) / np.maximum(x.std(0), 1e-9), -6, 6).astype(np.float32)


REAL: dict[str, Callable[[], Dataset]] = {
    "digits": of_scikit("digits"),
    "iris": of_scikit("iris"),
    "wine": of_scikit("wine"),
    "cancer": of_scikit("breast_cancer"),
    "dermatology": of_table("dermatology"),
    "soybean": of_table("soybean"),
    "segment": of_table("segment"),
    "hypothyroid": of_table("hypothyroid"),
    "fashion": of_fashion(),
    "cifar10": of_cifar("cifar10"),
    "words": of_docstrings(),
    "tfidf": of_docstrings(),
}
OTHER: dict[str, Callable[[], Dataset]] = {
    "cifar10n": of_cifar("cifar10n"),
    "fashion-other": of_fashion(2 * MOST),
    "cifar10-other": of_cifar("cifar10", 2 * MOST),
    "words-other": of_docstrings(OTHER_PACKAGES),
}
Luck = np.random.RandomState


def coin(count: int, columns: int, shares: tuple[float, ...]) -> Callable[[Luck], tuple[Any, Any]]:
    """Labels by lot that no column says anything about."""
    return lambda luck: (luck.normal(size=(count, columns)), luck.choice(len(shares), count, p=shares))


def ages(luck: Luck) -> tuple[Any, Any]:
    """One column, the age, that says a little about who is ill."""
    ill = luck.choice(2, 1000, p=(0.8, 0.2))
    return np.column_stack([np.where(ill, 66, 60) + 10 * luck.normal(size=1000), luck.normal(size=(1000, 2))]), ill


def two_bells(error: float, share: float = 0.5) -> Callable[[Luck], tuple[Any, Any]]:
    """Two normal clouds that overlap so far that the best rule errs with this share, if both are equally frequent."""
    from statistics import NormalDist

    half = -NormalDist().inv_cdf(error)

    def draw(luck: Luck) -> tuple[Any, Any]:
        y = luck.choice(2, 1000, p=(1 - share, share))
        x = luck.normal(size=(1000, 4))
        x[:, 0] += np.where(y == 1, half, -half)
        return x, y

    return draw


def six_bells(luck: Luck) -> tuple[Any, Any]:
    """Six normal clouds of unequal size that overlap."""
    y = luck.choice(6, 2000, p=(0.5, 0.2, 0.1, 0.1, 0.05, 0.05))
    return luck.normal(size=(2000, 10)) + (0.9 * luck.normal(size=(6, 10)))[y], y


def far_clouds(luck: Luck) -> tuple[Any, Any]:
    """Eight clouds with long tails: some samples lie in the middle of any other cloud."""
    y = luck.randint(0, 8, 2000)
    return luck.standard_t(2.5, size=(2000, 12)) + (1.6 * luck.normal(size=(8, 12)))[y], y


def constant(luck: Luck) -> tuple[Any, Any]:
    """Columns that are the same for everybody."""
    return np.ones((900, 3)), luck.choice(3, 900, p=(0.6, 0.25, 0.15))


def one_bit(luck: Luck) -> tuple[Any, Any]:
    """One yes/no column that agrees with the label in four of five."""
    bit = luck.randint(0, 2, 1000)
    return np.column_stack([bit, luck.normal(size=(1000, 2))]), np.where(luck.rand(1000) < 0.8, bit, 1 - bit)


def four_values(luck: Luck) -> tuple[Any, Any]:
    """One column of four values that names the class with a share of 78 %."""
    value = luck.randint(0, 4, 1000)
    label = np.where(luck.rand(1000) < 0.78, value, (value + luck.randint(1, 4, 1000)) % 4)
    return np.eye(4)[value], label


MADE: dict[str, Callable[[Luck], tuple[Any, Any]]] = {
    "coin80": coin(1000, 3, (0.8, 0.2)),
    "coin50": coin(1000, 8, (0.5, 0.5)),
    "coin97": coin(1000, 3, (0.97, 0.03)),
    "ten": coin(2000, 50, (0.1,) * 10),
    "age": ages,
    "gauss5": two_bells(0.05),
    "gauss10": two_bells(0.1),
    "gauss20": two_bells(0.2),
    "gauss30": two_bells(0.3),
    "gauss85": two_bells(0.1587, 0.15),  # centres at distance 2
    "six": six_bells,
    "constant": constant,
    "z80": one_bit,
    "onehot4": four_values,
}


DRAWN = MADE | {"clouds": far_clouds}


@lru_cache(maxsize=2)
def whole(data: str) -> Dataset:
    """A real set, read once."""
    return (REAL | OTHER)[data]()


def drawn(data: str, seed: int) -> Dataset:
    """The samples of a case with labels that are right: another draw for every seed."""
    luck = Luck(seed + 1)
    if data in DRAWN:
        x, y = DRAWN[data](luck)
        return from_arrays(standardised(x) if data != "constant" else x, y, name=data)
    found = whole(data)
    if len(found.train) <= MOST:
        return found
    return dataclasses.replace(found, train=found.train.subset(np.sort(luck.permutation(len(found.train))[:MOST])))


# --- sites and errors ----------------------------------------------------------------------------------------------


def made(case: Case, seed: int) -> Dataset:
    """The data of a case: sites and given labels, with the truth beside them."""
    dataset = drawn(case.data, seed)
    train = dataset.train
    true = train.labels if train.true is None else train.true
    if case.dealt == GIVEN:  # the errors come first; those of `sloppy` need the sites before
        given = given_labels(case, dataset, true, np.zeros(len(true), np.int64), seed)
        site = site_of(case, given, dataset.classes, seed)
    else:
        site = site_of(case, true, dataset.classes, seed)
        given = given_labels(case, dataset, true, site, seed)
    labelled: Samples = dataclasses.replace(
        train, labels=given, true=true, sites=np.array([f"site-{number + 1}" for number in site]), human={}
    )
    return dataclasses.replace(
        dataset, name=case.data, train=labelled, test=None, labels_trusted=False, agreed_classes=True, source=""
    )


def site_of(case: Case, labels: Ints, classes: int, seed: int) -> Ints:
    """The site of every sample: shares by lot, or classes dealt out unevenly."""
    if case.dealt == LOT:
        bounds = np.cumsum(SHARES)[:-1] * len(labels)
        place = np.empty(len(labels), np.int64)
        place[Luck(seed + 100).permutation(len(labels))] = np.arange(len(labels))
        return np.searchsorted(bounds, place, side="right").astype(np.int64)
    rule = catalogue.make("partitions", DIRICHLET)
    assert isinstance(rule, Partition)
    holdings = rule.split(Population(labels, classes, len(SHARES), seed))
    found = np.empty(len(labels), np.int64)
    found[holdings.rows] = holdings.client
    return found


def given_labels(case: Case, dataset: Dataset, true: Ints, site: Ints, seed: int) -> Ints:
    """The labels as they were given."""
    luck = Luck(seed + 200)
    if case.data == "cifar10n":
        return dataset.train.human[case.errors]
    if case.errors == "none":
        return true
    if case.errors == "sloppy":
        rate = np.where(site == SLOPPY_SITE, SLOPPY, TIDY)
        return np.where(luck.rand(len(true)) < rate, any_other(true, dataset.classes, luck), true)
    share = float(case.errors.removeprefix("uniform").removeprefix("conf")) / 100
    wrong = luck.permutation(len(true))[: round(share * len(true))]
    other = any_other(true, dataset.classes, luck)
    if case.errors.startswith("conf"):
        other = confused(case.encoder, dataset, true, seed)[true]
    found = true.copy()
    found[wrong] = other[wrong]
    return found


def any_other(true: Ints, classes: int, luck: Luck) -> Ints:
    """A class that is not the true one, all equally likely."""
    return np.asarray((true + luck.randint(1, classes, len(true))) % classes)


def confused(encoder: str | None, dataset: Dataset, true: Ints, seed: int) -> Ints:
    """Per class the one that it is mistaken for most often by the nearest mean of a class, from right labels."""
    stage = prepare(Experiment(data=dataset, encoder=encoder, clients=1, partition="iid", test=0.0))
    x = stage.judged.features.take(np.arange(len(true))).reshape(len(true), -1).astype(np.float64)
    counts, fold = np.zeros((dataset.classes, dataset.classes)), Luck(seed).permutation(len(true)) % 3
    for number in range(3):
        known, asked = fold != number, fold == number
        sizes = np.bincount(true[known], minlength=dataset.classes)
        means = np.stack([x[known & (true == label)].sum(0) for label in range(dataset.classes)])
        means /= np.maximum(sizes, 1)[:, None]
        nearness = x[asked] @ means.T - 0.5 * (means**2).sum(1) - np.where(sizes, 0, np.inf)
        np.add.at(counts, (true[asked], nearness.argmax(1)), 1)
    np.fill_diagonal(counts, -1)
    return counts.argmax(1)
