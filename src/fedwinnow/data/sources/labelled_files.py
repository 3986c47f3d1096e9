"""Base of the sources that read a folder of files, with a table beside it that has a label for each of them."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedwinnow.data.content_hash import Contents
from fedwinnow.data.dataset import Dataset, Features, Labels, Resident, Samples
from fedwinnow.data.input_form import InputForm
from fedwinnow.data.label_kinds import refuse_no_classes
from fedwinnow.data.labels import class_names_of, warn_of_alike_classes
from fedwinnow.data.new_samples import NewSamples
from fedwinnow.data.schema import TableSchema, encode_labels
from fedwinnow.data.source import Source
from fedwinnow.data.source_files import existing_folder
from fedwinnow.data.sources.csv import Csv
from fedwinnow.data.sources.excel import Excel
from fedwinnow.data.sources.parquet import Parquet
from fedwinnow.data.sources.table_source import TableSource
from fedwinnow.data.table_reading import TextTable
from fedwinnow.errors import DataError, FedwinnowWarning, UsageError
from fedwinnow.options import option

Vectors = NDArray[np.float32]
INSIST = "Choose another column with label=...; if they are classes after all, write classes=any into the data source."
READERS: dict[str, type[Csv | Excel | Parquet]] = {".xlsx": Excel, ".parquet": Parquet}


@dataclass(frozen=True)
class LabelTable:
    """The table of labels, read and checked."""

    table: TextTable
    class_names: tuple[str, ...]
    labels: Labels
    ids: NDArray[np.str_]
    true: Labels | None = None
    sites: NDArray[np.str_] | None = None

    @property
    def path(self) -> Path:
        return self.table.path


@dataclass(frozen=True)
class LabelledFiles(Source):
    """A folder of files with a table of labels."""

    path: Path = option(..., "The folder; folders in it are searched too.")
    labels: Path | None = option(
        None, "A table (.csv, .tsv, .xlsx, .parquet) with a row per file; only a trained model does without."
    )
    label: str = option("label", "The column with the labels.")
    id: str = option("id", "The column that names the file of a row: its path in the folder, or its name.")
    site: str | None = option(None, "The column with the site that holds the row.")
    true: str | None = option(None, "The column with labels that are known to be true, used to score, never to train.")
    partial: bool = option(False, "Leave rows out whose file is not there, instead of refusing them.")
    classes: Literal["checked", "any"] = option(
        "checked", "Refuse labels that look like measurements, ids or several labels in one cell, or take any."
    )

    def columns(self) -> dict[str, str | None]:
        """Which column of the table has which role."""
        return {"label": self.label, "id": self.id, "site": self.site, "true": self.true}

    def read_labels(self) -> LabelTable:
        """The table of labels."""
        path = self.label_path()
        named = [column for column in self.columns().values() if column is not None]
        if len(set(named)) < len(named):
            twice = next(name for name, count in Counter(named).items() if count > 1)
            raise UsageError(
                f"{self.name}: the column '{twice}' is given two roles; each of label, id, ... needs its own."
            )
        table = self.read_table(path)
        given = table.filled(self.label, "label")
        names = class_names_of(given)
        if len(names) < 2:
            raise DataError(
                f"{table.path}: the label column '{self.label}' has the value '{names[0]:.60}' in every row; a "
                "classifier needs at least two classes."
            )
        if self.classes == "checked":
            refuse_no_classes(f"{table.path}: the label column '{self.label}'", Counter(given), INSIST)
        schema = TableSchema((), names)
        return LabelTable(
            table,
            names,
            encode_labels(table, self.label, "label", schema),
            table.id_column(self.id),
            None if self.true is None else encode_labels(table, self.true, "true label", schema),
            None if self.site is None else table.name_column(self.site, "site"),
        )

    def label_source(self, id: str | None = None) -> TableSource:
        """The source that reads the table of labels, by the end of its name; with `id` the column of the ids."""
        path = self.label_path()
        return READERS.get(path.suffix.lower(), Csv)(path=path, label=self.label, id=id)

    def label_path(self) -> Path:
        """The table of labels."""
        if self.labels is None:
            raise UsageError(
                f"{self.name}: labels= is missing; needed: a table with a row per sample, in which the column "
                f"'{self.id}' (id=) names the sample and '{self.label}' (label=) is its label."
            )
        return self.labels

    def read_table(self, path: Path) -> TextTable:
        """The cells of the table of labels."""
        return self.label_source().read_file(path)

    def files(self, endings: Sequence[str]) -> list[Path]:
        """The files below the folder whose names end so, in the order of their paths; hidden ones are left out."""
        root, found = existing_folder(self.path), []
        for parent, folders, names in os.walk(root):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            found += [
                Path(parent, name)
                for name in names
                if not name.startswith(".") and os.path.splitext(name)[1].lower() in endings
            ]
        if not found:
            shown = ", ".join(ending or "(none)" for ending in endings)
            raise DataError(f"{root} has no file in it that ends in {shown}. Check path=.")
        return sorted(found)

    def matched(
        self, labels: LabelTable, named: dict[str, list[Path]], hint: str
    ) -> tuple[NDArray[np.int64], list[Path]]:
        """The rows that are used and the file of each; a row without a file, or with two, is refused."""
        rows, found, absent = [], [], []
        for row, name in enumerate(labels.ids.tolist()):
            files = named.get(name.replace("\\", "/"), [])
            if len(files) > 1:
                raise DataError(
                    f"{labels.table.place(row)}: the id '{name}' names {len(files)} files below {self.path}, "
                    f"{files[0]} and {files[1]} for example. Write their paths in the folder instead."
                )
            if files:
                rows.append(row)
                found.append(files[0])
            else:
                absent.append(row)
        if absent and (not self.partial or not rows):
            hint = lost_zeros(labels.ids.tolist(), named) or hint
            raise DataError(
                f"{labels.table.place(absent[0])}: no file below {self.path} is named '{labels.ids[absent[0]]}' "
                f"({len(absent)} of {len(labels.ids)} rows have none). {hint} To use only what "
                "is there: partial=true"
            )
        if absent:
            self.tell(f"{len(absent)} of {len(labels.ids)} rows of {labels.path.name} have no file and are left out")
        again = [file for file, count in Counter(found).items() if count > 1]
        if again:
            row = rows[found.index(again[0], found.index(again[0]) + 1)]
            raise DataError(f"{labels.table.place(row)}: the file {again[0]} has a row already. Keep one of them.")
        return np.array(rows, np.int64), found

    def dataset_of_vectors(
        self, labels: LabelTable, rows: NDArray[np.int64], vectors: Vectors, hashed: str, contents: Contents
    ) -> Dataset:
        """The data set of samples that are rows of numbers, used as they are."""
        group = self.columns().get("group")
        dataset = Dataset(
            name=self.path.resolve().stem or self.name,
            kind="rows",
            class_names=labels.class_names,
            train=Samples(
                Resident(vectors),
                labels.labels[rows],
                labels.ids[rows],
                true=chosen(labels.true, rows),
                sites=chosen(labels.sites, rows),
                groups=None if group is None else labels.table.name_column(group, "group")[rows],
            ),
            labels_trusted=False,
            agreed_classes=self.partial,
            source_hash=hashed,
            contents=contents,
        )
        warn_of_alike_classes(dataset)
        return dataset

    def new_samples(
        self, name: str, labels: LabelTable, rows: NDArray[np.int64], features: Features, form: InputForm
    ) -> NewSamples:
        """New samples with the labels of the table, where the model knows all its classes."""
        ids, sites = labels.ids[rows], chosen(labels.sites, rows)
        if not set(labels.class_names) <= set(form.class_names):
            return NewSamples(name, features, ids, sites=sites)
        places = np.array([form.class_names.index(one) for one in labels.class_names])
        true = chosen(labels.true, rows)
        return NewSamples(
            name, features, ids, places[labels.labels[rows]], None if true is None else places[true], sites
        )

    def tell(self, text: str) -> None:
        """Say what the user should know."""
        warnings.warn(f"{self.path}: {text}.", FedwinnowWarning, stacklevel=4)


def by_name(root: Path, paths: Iterable[Path]) -> dict[str, list[Path]]:
    """The files by their path in the folder, their name, and both without the ending."""
    found: dict[str, list[Path]] = {}
    for path in paths:
        inside = path.relative_to(root).as_posix()
        for name in {inside, path.name, inside.removesuffix(path.suffix), path.stem}:
            found.setdefault(name, []).append(path)
    return found


def lost_zeros(ids: Iterable[str], names: Iterable[str]) -> str:
    """What an error says where ids would be names without the zeros at their beginning; empty where they would not."""
    shortened = {name.lstrip("0") or "0": name for name in names if name.startswith("0")}
    found = next((name for name in ids if name.isdigit() and name in shortened), None)
    if found is None:
        return ""
    return (
        f"'{shortened[found]}' is there: a spreadsheet has taken the zeros at the beginning away. Write this column as "
        "text."
    )


def chosen(column: Any, rows: NDArray[np.int64]) -> Any:
    """The rows of a column that may not be there."""
    return None if column is None else column[rows]
