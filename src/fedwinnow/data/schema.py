"""How the columns of a table become numbers: fitted once, then applied to every file of every site."""

from __future__ import annotations

import json
import math
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwinnow.data.column import Column
from fedwinnow.data.dataset import Labels
from fedwinnow.data.label_kinds import refuse_no_classes
from fedwinnow.data.labels import class_names_of, class_numbers, name_some
from fedwinnow.data.source_files import existing_file
from fedwinnow.data.table_reading import TextTable, is_missing
from fedwinnow.errors import DataError, FedwinnowWarning

VERSION = 1
MANY_ROWS = 50  # in fewer rows a column of measurements may have a different value in every row


@dataclass(frozen=True)
class TableSchema:
    """What two sites must share so that their files give features and classes of the same meaning."""

    columns: tuple[Column, ...]
    class_names: tuple[str, ...]

    @property
    def width(self) -> int:
        return sum(column.width for column in self.columns)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        columns = [asdict(column) | {"categories": list(column.categories)} for column in self.columns]
        return {"version": VERSION, "columns": columns, "class_names": list(self.class_names)}

    @staticmethod
    def from_dict(values: Any, where: str = "schema") -> TableSchema:
        """The schema that `to_dict` wrote, checked, because it may come from elsewhere."""
        if not isinstance(values, dict) or values.get("version") != VERSION:
            raise DataError(f"{where}: not a table schema of version {VERSION}.")
        names, columns = values.get("class_names"), values.get("columns")
        if not isinstance(names, list) or not is_texts(names) or not isinstance(columns, list):
            raise DataError(f"{where}: a schema needs class_names, a list of texts, and columns, a list.")
        return TableSchema(tuple(column_from(column, where) for column in columns), tuple(names))


def is_texts(value: Any) -> bool:
    """Whether a plain value is a list of texts."""
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def column_from(values: Any, where: str) -> Column:
    """One column of a schema from plain values."""
    fields = {"name", "kind", "missing", "mean", "std", "categories"}
    if (
        not isinstance(values, dict)
        or set(values) != fields
        or not isinstance(values["name"], str)
        or values["kind"] not in ("numeric", "categorical")
        or not isinstance(values["missing"], bool)
        or not is_texts(values["categories"])
        or not all(isinstance(values[key], int | float) and math.isfinite(values[key]) for key in ("mean", "std"))
        or values["std"] <= 0
    ):
        raise DataError(f"{where}: the column {values!r:.200} is not a valid column of a schema.")
    return Column(**(values | {"categories": tuple(values["categories"])}))


def read_schema(path: Path) -> TableSchema:
    """A schema from a JSON file."""
    try:
        values = json.loads(existing_file(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        raise DataError(f"{path}: not a JSON file. A schema is written by the site that fitted it.") from None
    return TableSchema.from_dict(values, str(path))


# --- fitting -------------------------------------------------------------------------------------------------------


INSIST = (
    "Choose another column with label=..., or group its values; if they are classes after all, write classes=any into "
    "the data source."
)


def fit(
    table: TextTable, features: Sequence[str], label: str, max_categories: int, any_labels: bool = False
) -> TableSchema:
    """The schema of a table, from its rows; `any_labels` takes labels that do not look like classes."""
    given = table.filled(label, "label")
    class_names = class_names_of(given)
    if len(class_names) < 2:
        raise DataError(
            f"{table.path}: the label column '{label}' has the value '{class_names[0]:.60}' in every row; "
            "a classifier needs at least two classes."
        )
    if not any_labels:
        refuse_no_classes(f"{table.path}: the label column '{label}'", Counter(given), INSIST)
    return TableSchema(tuple(fit_column(table, name, max_categories) for name in features), class_names)


def fit_column(table: TextTable, name: str, max_categories: int) -> Column:
    """A numeric column if every value is a number, else a categorical one."""
    values = parse(table, name)
    if values is not None:
        gone = np.isnan(values)
        if gone.all():
            raise DataError(f"{table.path}: column '{name}' has no value in any row. Leave it out with ignore={name}")
        mean, std = centre_and_spread(finite(table, name, values)[~gone])
        if (values == np.floor(values)).all():
            warn_of_id(table, name, "whole number")
        return Column(name, "numeric", bool(gone.any()), mean=mean, std=std)
    cells = table.column(name)
    distinct = set(cells)
    categories = tuple(sorted(cell for cell in distinct if not is_missing(cell)))
    if len(categories) > max_categories:
        row = next(row for row, cell in enumerate(cells) if to_number(cell, table.decimal) is None)
        raise DataError(
            f"{table.path}: column '{name}' has {len(categories)} different texts, more than max_categories="
            f"{max_categories}. If it is the id of a row, write id={name}; else leave it out with ignore={name}, or "
            f"correct it if it should be numeric (its first value that is not a number is '{cells[row]:.60}', "
            f"{table.place(row)})."
        )
    warn_of_id(table, name, "text")
    return Column(name, "categorical", len(categories) < len(distinct), categories=categories)


def warn_of_id(table: TextTable, name: str, kind: str) -> None:
    """Warn of a column that looks like an id: a model could only use it to memorise single rows."""
    if len(table) >= MANY_ROWS and len(set(table.column(name))) == len(table):
        warnings.warn(
            f"{table.path}: column '{name}' has a different {kind} in every row, and is used for training. If it is an "
            f"id, write id={name}; ignore={name} leaves it out.",
            FedwinnowWarning,
            stacklevel=2,
        )


def to_number(cell: str, decimal: str) -> float | None:
    """A cell as a number, NaN where it is missing, None where it is a text."""
    if is_missing(cell):
        return math.nan
    try:
        return None if "_" in cell else float(cell)
    except ValueError:
        pass
    try:
        return float(cell.replace(",", ".")) if decimal == "," and cell.count(",") == 1 and "_" not in cell else None
    except ValueError:
        return None


def parse(table: TextTable, name: str) -> NDArray[np.float64] | None:
    """A column as numbers, NaN where a value is missing; None where a cell is a text."""
    cells = table.column(name)
    try:
        values = np.fromiter(map(float, cells), dtype=np.float64, count=len(cells))
        if "_" not in "".join(cells):
            return values
    except ValueError:
        pass  # a missing cell, a decimal comma or a text: look at each different cell
    lookup = {cell: to_number(cell, table.decimal) for cell in set(cells)}
    if None in lookup.values():
        return None
    return np.fromiter((lookup[cell] for cell in cells), dtype=np.float64, count=len(cells))


def finite(table: TextTable, name: str, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The values of a column; an infinite value is refused."""
    if len(bad := np.flatnonzero(np.isinf(values))):
        row = int(bad[0])
        raise DataError(
            f"{table.place(row)}: column '{name}' has '{table.column(name)[row]:.60}', which is infinite or too large. "
            "Correct it, or leave the cell empty if the value is unknown."
        )
    return values


def centre_and_spread(values: NDArray[np.float64]) -> tuple[float, float]:
    """Mean and standard deviation; the values are scaled first, so that squares cannot overflow."""
    scale = float(np.abs(values).max()) or 1.0
    scaled = values / scale
    mean, std = float(scaled.mean()), float(scaled.std())
    # A constant column becomes zeros; dividing by its standard deviation would only enlarge rounding errors.
    return mean * scale, std * scale if std > 1e-12 and std * scale > 0 else 1.0


# --- applying ------------------------------------------------------------------------------------------------------


def encode_rows(table: TextTable, schema: TableSchema) -> NDArray[np.float32]:
    """The features of every row; a category that is not in the schema gets zeros in all its columns."""
    rows = np.zeros((len(table), schema.width), dtype=np.float32)
    start = 0
    for column in schema.columns:
        block = rows[:, start : start + column.width]
        (encode_numeric if column.kind == "numeric" else encode_categorical)(table, column, block)
        start += column.width
    return rows


def encode_numeric(table: TextTable, column: Column, block: NDArray[np.float32]) -> None:
    """Standardise; a missing value becomes the mean, which is zero, and is marked if the schema has a column for it."""
    values = parse(table, column.name)
    if values is None:
        cells = table.column(column.name)
        row = next(row for row, cell in enumerate(cells) if to_number(cell, table.decimal) is None)
        raise DataError(
            f"{table.place(row)}: column '{column.name}' has '{cells[row]:.60}', which is not a number, unlike the "
            "column that the schema was fitted on. Correct it, or leave the cell empty if the value is unknown."
        )
    values = finite(table, column.name, values)
    gone = np.isnan(values)
    with np.errstate(over="ignore"):
        scores = ((values / 2 - column.mean / 2) / column.std * 2).astype(np.float32)
    scores[gone] = 0.0
    if len(far := np.flatnonzero(~np.isfinite(scores))):
        raise DataError(
            f"{table.place(int(far[0]))}: column '{column.name}' has {values[far[0]]:g}, too far from its mean "
            f"{column.mean:g} (standard deviation {column.std:g}) to be stored. Correct it."
        )
    block[:, 0] = scores
    if column.missing:
        block[:, 1] = gone


def encode_categorical(table: TextTable, column: Column, block: NDArray[np.float32]) -> None:
    """One column per category, and one for missing values if the schema has it."""
    cells = table.column(column.name)
    places = {category: place for place, category in enumerate(column.categories)}
    lost = len(column.categories) if column.missing else -1
    lookup = {cell: lost if is_missing(cell) else places.get(cell, -1) for cell in set(cells)}
    codes = np.fromiter((lookup[cell] for cell in cells), dtype=np.int64, count=len(cells))
    known = np.flatnonzero(codes >= 0)
    block[known, codes[known]] = 1.0


def encode_labels(table: TextTable, name: str, purpose: str, schema: TableSchema) -> Labels:
    """The class of every row."""
    cells = table.filled(name, purpose)
    labels = class_numbers(cells, schema.class_names)
    if len(bad := np.flatnonzero(labels < 0)):
        raise DataError(
            f"{table.place(int(bad[0]))}: the {purpose} (column '{name}') is '{cells[bad[0]]:.60}', which is not a "
            f"class; allowed: {name_some(schema.class_names)}."
        )
    return labels
