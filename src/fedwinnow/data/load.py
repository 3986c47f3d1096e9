"""From what a user writes to a data set: the spec of a source, or just a path."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from fedwinnow import catalogue
from fedwinnow.data.dataset import Dataset
from fedwinnow.data.source import Source
from fedwinnow.data.split import shrink, thinned
from fedwinnow.errors import DataError, UsageError, unknown

# What a bare path means, by the end of its name; a table's labels are then in the column `label`.
SUFFIXES: dict[str, dict[str, str]] = {
    ".csv": {"kind": "csv", "label": "label"},
    ".tsv": {"kind": "csv", "label": "label"},
    ".npz": {"kind": "npz"},
    ".parquet": {"kind": "parquet", "label": "label"},
}


def load(spec: str | Path | dict[str, Any] | Source) -> Dataset:
    """The data set that a spec, a table with `kind`, a source or a path stands for."""
    source = catalogue.make("data", understood(spec))
    if not isinstance(source, Source):
        raise UsageError(f"{source} is no data source; allowed: {', '.join(catalogue.entries('data'))}.")
    dataset = shrink(thinned(source.load(), source.imbalance), source.train, source.test)
    return dataclasses.replace(dataset, source=str(source))


def understood(spec: str | Path | dict[str, Any] | Source) -> str | dict[str, Any] | Source:
    """A path turned into the source that reads it; anything else as it is."""
    if isinstance(spec, str) and spec.partition(":")[0].strip() in catalogue.entries("data"):
        return spec
    if not isinstance(spec, str | Path) or spec == "":
        return spec
    path, known = Path(spec), SUFFIXES.get(Path(spec).suffix.lower())
    if is_folder(path):
        return {"kind": "folder", "path": str(path)}
    if known is not None:
        return {**known, "path": str(path)}
    if exists(path) or isinstance(spec, Path):
        endings = ", ".join(SUFFIXES)
        raise DataError(
            f"{path}: not a folder and no file that ends in {endings}. Name its source, for example "
            f"csv:path={path},label=COLUMN (see `fedwinnow data`)."
        )
    if ":" not in spec:
        raise unknown_data(spec.strip())
    return spec


def unknown_data(name: str) -> UsageError:
    """A name that is neither a source nor a path; which of the two was meant, nobody knows."""
    problem = unknown("data source", name, catalogue.entries("data"))
    return UsageError(f"{problem} A path works too, but there is no file or folder '{name}' in {Path.cwd()}.")


def is_folder(path: Path) -> bool:
    """Whether this is a folder; a text that can be no path is none."""
    try:
        return path.expanduser().is_dir()
    except (OSError, ValueError, RuntimeError):
        return False


def exists(path: Path) -> bool:
    """Whether there is anything at this path."""
    try:
        return path.expanduser().exists()
    except (OSError, ValueError, RuntimeError):
        return False
