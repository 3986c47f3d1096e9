"""Samples for a trained model: from files or from a program, mostly without labels, in the form of the training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwinnow.data.arrays import features_of, to_array
from fedwinnow.data.cell_values import GONE, numbers_of, positions_of
from fedwinnow.data.column import Column
from fedwinnow.data.dataset import Dataset, Features, Labels, Resident, Texts
from fedwinnow.data.frame_cells import is_frame, table_of
from fedwinnow.data.free_text import vectors_of
from fedwinnow.data.images import Lazy, load_images
from fedwinnow.data.input_form import InputForm
from fedwinnow.data.labels import name_some
from fedwinnow.data.schema import TableSchema, encode_rows
from fedwinnow.data.schema_check import tell_differences
from fedwinnow.data.table_reading import TextTable, is_missing
from fedwinnow.data.tokens import token_ids
from fedwinnow.errors import DataError, UsageError


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
    needed = [column.name for column in form.columns if not column.part or column.title not in table.names]
    missing = [name for name in dict.fromkeys(needed) if name not in table.names]
    if missing:
        several = len(missing) > 1
        raise DataError(
            f"{table.path}: the column{'s' * several} {name_some(missing)} {'are' if several else 'is'} missing, "
            f"which the model was trained on. The file has: {name_some(table.names)}."
        )
    tell_differences(table, form.columns, "the training data")
    return Resident(encode_rows(table, TableSchema(form.columns, form.class_names)))


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
    if isinstance(values, dict) or is_frame(values):
        return table_of(values, where)
    if isinstance(values, list | tuple) and values and all(isinstance(row, dict) for row in values):
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
    return table_of(columns, where)


def raw_columns(table: TextTable, form: InputForm) -> NDArray[np.float64]:
    """The columns as numbers before any standardising: a category is its position, -1 if unknown, NaN if missing.

    Of ordered categories an unknown one is missing too; a text is the numbers that its encoder gives.
    """
    return np.concatenate([raw_column(table, column) for column in form.columns], axis=1)


def raw_column(table: TextTable, column: Column) -> NDArray[np.float64]:
    """One column of a table, or several for a text."""
    if column.kind == "numeric":
        return numbers_of(table, column)[:, None]
    cells = table.column(column.name)
    if column.kind == "text":
        vectors = vectors_of(cells, column.encoder).astype(np.float64)
        vectors[[row for row, cell in enumerate(cells) if is_missing(cell)]] = np.nan
        return vectors
    positions = positions_of(column, cells).astype(np.float64)
    gone = positions < 0 if column.kind == "ordered" else positions == GONE
    return np.where(gone, np.nan, positions)[:, None]
