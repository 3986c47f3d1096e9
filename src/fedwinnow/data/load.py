"""From what a user writes to a data set: the source, its test part, and smaller training parts."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import numpy as np

from fedwinnow import catalogue
from fedwinnow.all_settings import SceneSettings
from fedwinnow.data.dataset import Dataset, Labels, Rows, Samples
from fedwinnow.data.groups import draw_groups
from fedwinnow.data.images import SUFFIXES as PICTURES
from fedwinnow.data.input_form import InputForm
from fedwinnow.data.new_samples import NewSamples, known_samples, of_image_files
from fedwinnow.data.source import Source
from fedwinnow.data.source_files import existing_file
from fedwinnow.errors import DataError, UsageError, unknown
from fedwinnow.options import build, parse_spec
from fedwinnow.randomness import Integers, uniforms
from fedwinnow.setting import check_setting

# The source for a bare path, by the end of its name; a table then has its labels in the column `label`.
SUFFIXES: dict[str, dict[str, str]] = {
    ".csv": {"kind": "csv", "label": "label"},
    ".tsv": {"kind": "csv", "label": "label"},
    ".xlsx": {"kind": "excel", "label": "label"},
    ".npz": {"kind": "npz"},
    ".parquet": {"kind": "parquet", "label": "label"},
}


def load(spec: str | Path | dict[str, Any] | Source) -> Dataset:
    """The data set for a spec, a table with `kind`, a source or a path."""
    source = catalogue.make("data", understood(spec))
    if not isinstance(source, Source):
        raise UsageError(f"{source} is not a data source; allowed: {', '.join(catalogue.entries('data'))}.")
    dataset = shrink(thinned(source.load(), source.imbalance), source.train, source.test)
    return dataclasses.replace(dataset, source=str(source))


def understood(spec: str | Path | dict[str, Any] | Source) -> str | dict[str, Any] | Source:
    """The source that reads a path; anything but a path is returned as it is."""
    if isinstance(spec, str) and spec.partition(":")[0].strip() in catalogue.entries("data"):
        return spec
    if not isinstance(spec, str | Path) or spec == "":
        return spec
    path, known = Path(spec), SUFFIXES.get(Path(spec).suffix.lower())
    expanded = os.path.expanduser(path)  # os.path takes texts that cannot be paths
    if os.path.isfile(os.path.join(expanded, "x.npy")):  # what `fedwinnow encode` writes
        return {"kind": "features", "path": str(path)}
    if os.path.isdir(expanded):
        return {"kind": "folder", "path": str(path)}
    if known is not None:
        return {**known, "path": str(path)}
    if os.path.exists(expanded) or isinstance(spec, Path):
        endings = ", ".join(SUFFIXES)
        raise DataError(
            f"{path}: not a folder and not a file that ends in {endings}. Name its source, for example "
            f"csv:path={path},label=COLUMN (see `fedwinnow data`)."
        )
    if ":" not in spec:
        raise unknown_data(spec.strip())
    return spec


def with_columns(data: Any, **columns: Any) -> Any:
    """The data with the columns that name the label, the site and the group of every sample."""
    for role, column in columns.items():
        data = data if column is None else with_column(data, role, column)
    return data


def with_column(data: Any, role: str, column: Any) -> Any:
    """The data with the column of one role."""
    found = understood(data)
    if isinstance(found, str):
        name, values = parse_spec(found)
        found = {"kind": name, **values}
    if not isinstance(found, dict) or not isinstance(column, str):
        raise UsageError(f"--{role} names a column of a table; write it into the data itself here.")
    # A path says nothing of its columns; `label` is only the usual name.
    said = role in found and not (role == "label" and isinstance(data, str | Path) and ":" not in str(data))
    if said and found[role] != column:
        raise UsageError(f"--{role} {column} was given, but the data says {role}={found[role]}. Give one of them.")
    return {**found, role: column}


def load_new(spec: str | Path | dict[str, Any] | Source, form: InputForm) -> NewSamples:
    """Samples for a trained model, by a spec or a path; what is not said of the columns is as in the training.

    A published data set gives its test part, or all its samples if it has none.
    """
    if isinstance(spec, str | Path) and Path(spec).suffix.lower() in PICTURES and os.path.isfile(spec):
        path = existing_file(Path(spec))
        return NewSamples(path.stem, of_image_files([path], [path.name], form), np.array([path.name]))
    asked = understood(spec)
    source = asked if isinstance(asked, Source) else completed(asked, form, bare=isinstance(spec, str | Path))
    return source.load_new(form) or known_samples(load(source), form)


def completed(spec: str | dict[str, Any], form: InputForm, *, bare: bool) -> Source:
    """The source of a spec; a table gets the columns of the training for the roles that the spec does not name."""
    from fedwinnow.data.sources.table_source import ROLES, TableSource

    name, values = catalogue.split("data", spec)
    part = catalogue.find("data", name).load()
    if issubclass(part, TableSource):
        if bare and not isinstance(spec, str):
            values.pop("label")  # `understood` has added it to a path, which says nothing of columns
        usual = {"label": "label", **{role: form.roles[role] for role in ROLES if role in form.roles}}
        values = {role: column for role, column in usual.items() if column not in values.values()} | values
        if "label" not in values:  # another role has its column now
            values["label"] = "label"
    made = build("data source", part, values)
    assert isinstance(made, Source)
    return made


def unknown_data(name: str) -> UsageError:
    """The error for a name that is neither a source nor a path; it names both possibilities."""
    problem = unknown("data source", name, catalogue.entries("data"))
    return UsageError(f"{problem} A path works too, but there is no file or folder '{name}' in {Path.cwd()}.")


SHRINK_SEED = 0  # a subset belongs to the data, so it must not change with the seed of a run


def with_test_part(dataset: Dataset, share: float, seed: int) -> Dataset:
    """The data set with a share of every class as its test part, unless it has a test part.

    Every class keeps at least one training sample. A share of 0 leaves the data set as it is. Groups stay whole, so
    the share is then met only as nearly as they allow.
    """
    check_setting(SceneSettings, "test", share)
    if dataset.test is not None or share == 0:
        return dataset
    counts = np.bincount(dataset.train.labels, minlength=dataset.classes)
    wanted = np.minimum(np.floor(counts * share + 0.5).astype(np.int64), np.maximum(counts - 1, 0))
    if wanted.sum() == 0:
        raise DataError(
            f"{dataset.name}: a test share of {share} of {len(dataset.train)} samples in {dataset.classes} classes is "
            "less than one sample. Raise the share, or set it to 0 to go without a test part."
        )
    groups, labels = dataset.train.groups, dataset.train.labels
    if groups is None:
        chosen = draw(labels, wanted, seed, "test part")
    else:
        chosen = draw_groups(groups, labels, wanted, seed, "test part")
    if not len(chosen):
        raise DataError(
            f"{dataset.name}: a test part of {share} of the samples would need a part of a group, because the groups "
            "are large. Raise the share, or set it to 0 to go without a test part."
        )
    rest = np.setdiff1d(np.arange(len(dataset.train)), chosen)
    return dataclasses.replace(
        dataset,
        train=dataset.train.subset(rest),
        test=dataset.train.subset(chosen),
        contents=dataset.known_contents(),  # computed while the samples have the order of the data
    )


def thinned(dataset: Dataset, imbalance: float) -> Dataset:
    """The data set with a long tail: class c of C keeps the share imbalance^(-c / (C - 1)) of its training samples."""
    if imbalance == 1 or dataset.classes < 2:
        return dataset
    counts = np.bincount(dataset.train.labels, minlength=dataset.classes)
    share = imbalance ** (-np.arange(dataset.classes) / (dataset.classes - 1))
    wanted = np.minimum(np.maximum(np.floor(counts * share + 0.5).astype(np.int64), 1), counts)
    chosen = draw(dataset.train.labels, wanted, SHRINK_SEED, "long tail")
    return dataclasses.replace(dataset, train=dataset.train.subset(chosen))


def shrink(dataset: Dataset, train: int | None = None, test: int | None = None) -> Dataset:
    """The data set with only this many training and test samples, always the same ones."""
    if train is not None and train < dataset.classes:
        raise UsageError(
            f"train={train} was given; {dataset.name} has {dataset.classes} classes and needs one of each."
        )
    if test is not None and dataset.test is None:
        raise UsageError(f"test={test} was given, but {dataset.name} has no test part. Leave the option out.")
    smaller = dataset.train if train is None else shrink_part(dataset.train, train, dataset.classes, least=1)
    smaller_test = dataset.test
    if dataset.test is not None and test is not None:
        smaller_test = shrink_part(dataset.test, test, dataset.classes, least=0)
    return dataclasses.replace(dataset, train=smaller, test=smaller_test)


def shrink_part(samples: Samples, count: int, classes: int, least: int) -> Samples:
    """`count` of these samples; every class keeps its share."""
    if count >= len(samples):
        return samples
    wanted = apportion(np.bincount(samples.labels, minlength=classes), count, least)
    return samples.subset(draw(samples.labels, wanted, SHRINK_SEED, f"subset {'train' if least else 'test'}"))


def apportion(counts: Integers, total: int, least: int) -> Integers:
    """Whole numbers near `counts * total / sum(counts)` that add up to `total`, none below `least` if possible."""
    exact = counts * (total / counts.sum())
    wanted: Integers = np.minimum(np.maximum(np.floor(exact).astype(np.int64), least), counts)
    while wanted.sum() < total:
        wanted[np.argmax(np.where(wanted < counts, exact - wanted, -np.inf))] += 1
    while wanted.sum() > total:
        wanted[np.argmax(np.where(wanted > least, wanted - exact, -np.inf))] -= 1
    return wanted


def draw(labels: Labels, wanted: Integers, seed: int, purpose: str) -> Rows:
    """As many rows of each class as wanted, at random, in ascending order."""
    order = np.lexsort((uniforms(seed, purpose, 0, np.arange(len(labels))), labels))
    counts = np.bincount(labels, minlength=len(wanted))
    rank = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.asarray(np.sort(order[rank < wanted[labels[order]]]), dtype=np.int64)
