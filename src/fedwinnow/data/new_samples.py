"""Samples for a trained model: from files or from a program, mostly without labels, in the form of the training."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwinnow.data.arrays import features_of, to_array
from fedwinnow.data.column import Column
from fedwinnow.data.dataset import Dataset, Features, Labels, Resident, Texts
from fedwinnow.data.images import Lazy, load_images
from fedwinnow.data.input_form import InputForm
from fedwinnow.data.labels import name_some
from fedwinnow.data.schema import TableSchema, encode_rows, parse
from fedwinnow.data.table_reading import TextTable, as_texts, is_missing
from fedwinnow.data.tokens import token_ids
from fedwinnow.errors import DataError, FedwinnowWarning, UsageError


@dataclass(frozen=True, eq=False)
class TokensOfTexts(Resident):
    """Token ids with the texts that they were made of, for encoders that read texts."""

    texts: Texts


@dataclass(frozen=True, eq=False)
class NewSamples:
    """What a trained model is asked about; all arrays have the order of the features."""

    name: str
    features: Features
    ids: NDArray[Any]
    labels: Labels | None = None  # as they were given
    true: Labels | None = None
    sites: NDArray[np.str_] | None = None

    def __len__(self) -> int:
        return len(self.features)


def known_samples(dataset: Dataset, form: InputForm) -> NewSamples:
    """The test part of a data set, or all of it if it has none, checked to have the form of the training."""
    part = dataset.train if dataset.test is None else dataset.test
    if dataset.kind != form.kind or tuple(dataset.sample_shape) != form.sample_shape:
        found = InputForm.of(dataset).described()
        raise DataError(f"{dataset.name}: a sample is {found}; a sample of this model is {form.described()}.")
    check_classes(dataset.name, dataset.class_names, form)
    true = part.labels if part.true is None and dataset.labels_trusted else part.true
    features = part.features
    if isinstance(features, Resident) and part.texts is not None:
        features = TokensOfTexts(features.array, part.texts)
    return NewSamples(dataset.name, features, part.ids, part.labels, true, part.sites)


def check_classes(where: str, names: Sequence[str], form: InputForm) -> None:
    """Refuse data with other classes than those of the model."""
    if tuple(names) != form.class_names:
        raise DataError(
            f"{where} has the classes {name_some(names)}; those of the model are {name_some(form.class_names)}. "
            "They must be the same, in the same order."
        )


# --- features in the form of the training --------------------------------------------------------------------------


def of_array(where: str, values: Any, form: InputForm) -> Features:
    """Samples in an array."""
    array = to_array(where, "it", values)
    if form.columns:
        raise DataError(f"{where}: an array was given, but a sample of this model is {form.described()}. Give a table.")
    features = Resident(features_of(where, array, form.kind))
    if features.shape != form.sample_shape:
        raise DataError(
            f"{where}: a sample has the shape {features.shape}; a sample of this model is {form.described()}: "
            f"{form.sample_shape}."
        )
    if form.kind == "tokens" and int(features.array.max()) >= form.vocabulary:
        raise DataError(
            f"{where}: the largest token id is {int(features.array.max())}; the model knows 0 to {form.vocabulary - 1}."
        )
    return features


def of_image_files(paths: Sequence[Path], names: Sequence[str], form: InputForm, lazy: Lazy = "auto") -> Features:
    """Image files in the size and the channels of the training."""
    if form.kind != "images":
        raise DataError(f"images were given ({paths[0]}), but a sample of this model is {form.described()}.")
    height, width, channels = form.sample_shape
    return load_images(paths, (height, width), lazy, names, channels)


def of_texts(texts: Sequence[str], form: InputForm) -> Features:
    """Texts as token ids."""
    return TokensOfTexts(token_ids(texts, form.sample_shape[0], form.vocabulary), Texts(texts))


def of_table(table: TextTable, form: InputForm) -> Features:
    """Rows of a table with the columns of the training, in any order; other columns are not used."""
    missing = [name for name in form.column_names if name not in table.names]
    if missing:
        several = len(missing) > 1
        raise DataError(
            f"{table.path}: the column{'s' * several} {name_some(missing)} {'are' if several else 'is'} missing, "
            f"which the model was trained on. The file has: {name_some(table.names)}."
        )
    for column in form.columns:
        tell_new_values(table, column)
    return Resident(encode_rows(table, TableSchema(form.columns, form.class_names)))


def tell_new_values(table: TextTable, column: Column) -> None:
    """Warn of categories that training did not have, and of missing values where it had none."""
    cells = table.column(column.name)
    told = ""
    if column.kind == "categorical":
        known = set(column.categories)
        new = Counter(cell for cell in cells if cell not in known and not is_missing(cell))
        if new:
            shown = name_some([f"'{cell:.40}' ({count} rows)" for cell, count in new.most_common()], 3)
            told = f"has values that the training data did not have: {shown}; they count as none of the known values"
    if not told and not column.missing and any(is_missing(cell) for cell in set(cells)):
        rows = sum(is_missing(cell) for cell in cells)
        instead = "the mean is used" if column.kind == "numeric" else "they count as none of the known values"
        told = f"has no value in {rows} rows, which the training data did not have; {instead}"
    if told:
        warnings.warn(f"{table.path}: column '{column.name}' {told}.", FedwinnowWarning, stacklevel=3)


# --- what a program hands over -------------------------------------------------------------------------------------


def of_values(values: Any, form: InputForm, where: str = "x") -> Features:
    """Features from what a program has: a data frame, columns by name, a list of rows or texts, or an array."""
    if form.columns:
        return of_table(text_table(values, form, where), form)
    if form.hashed_words and is_texts(values):
        return of_texts([str(text) for text in values], form)
    if hasattr(values, "to_numpy"):
        values = values.to_numpy()
    return of_array(where, values, form)


def is_texts(values: Any) -> bool:
    """Whether a program gave texts, one per sample."""
    if isinstance(values, str):
        raise UsageError(f"a single text was given ({values[:40]!r}); allowed: a list of texts, one per sample.")
    return not hasattr(values, "detach") and len(values) > 0 and isinstance(next(iter(values)), str)


def text_table(values: Any, form: InputForm, where: str) -> TextTable:
    """A table from a data frame, a dictionary of columns, a list of dictionaries, or an array in the model's order."""
    if isinstance(values, dict) or (hasattr(values, "columns") and hasattr(values, "items")):  # or a data frame
        columns = {str(name): list(column) for name, column in values.items()}
    elif isinstance(values, list | tuple) and values and all(isinstance(row, dict) for row in values):
        names = list(dict.fromkeys(name for row in values for name in row))
        columns = {str(name): [row.get(name) for row in values] for name in names}
    else:
        array = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
        if array.ndim != 2 or array.shape[1] != len(form.columns):
            raise DataError(
                f"{where}: an array of the shape {array.shape} was given, but a sample of this model is "
                f"{form.described()}. Give a data frame with these columns, or an array with one column each."
            )
        columns = {name: list(array[:, place]) for place, name in enumerate(form.column_names)}
    lengths = {len(column) for column in columns.values()}
    if len(lengths) != 1 or lengths == {0}:
        raise DataError(f"{where}: columns of one length, with at least one row, are needed; found {sorted(lengths)}.")
    return TextTable(Path(where), {name: as_texts(map(plain, column)) for name, column in columns.items()})


def plain(value: Any) -> Any:
    """A value of a table as a CSV file would have it: what pandas calls missing is empty, 2.0 stays 2.0."""
    if value is None or value != value or type(value).__name__ in ("NAType", "NaTType"):
        return None
    return value.item() if isinstance(value, np.generic) else value


def raw_columns(table: TextTable, form: InputForm) -> NDArray[np.float64]:
    """The columns as numbers before any standardising: a category is its position, -1 if unknown, NaN if missing."""
    raw = np.empty((len(table), len(form.columns)))
    for place, column in enumerate(form.columns):
        if column.kind == "numeric":
            values = parse(table, column.name)
            if values is None:
                raise DataError(f"{table.path}: column '{column.name}' has a text where the model needs a number.")
            raw[:, place] = values
        else:
            codes = {category: float(code) for code, category in enumerate(column.categories)}
            raw[:, place] = [
                np.nan if is_missing(cell) else codes.get(cell, -1.0) for cell in table.column(column.name)
            ]
    return raw
