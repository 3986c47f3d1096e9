"""How the columns of a table become numbers: fitted once, then applied to every file of every site."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
from numpy.typing import NDArray

from fedwinnow.data.cell_values import GONE, UNKNOWN, numbers_of, positions_of
from fedwinnow.data.column import LATER, Column, Part
from fedwinnow.data.dataset import Labels
from fedwinnow.data.free_text import opened, vectors_of
from fedwinnow.data.labels import class_numbers, name_some
from fedwinnow.data.source_files import existing_file
from fedwinnow.data.table_reading import TextTable, is_missing
from fedwinnow.errors import DataError

VERSION = 1
BLOCK = 10_000  # rows
MOST_NUMBERS = 100_000  # that an encoder may give for a text


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
        columns = [column.as_table() for column in self.columns]
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
    problem = DataError(f"{where}: the column {values!r:.200} is not a valid column of a schema.")
    if (
        not isinstance(values, dict)
        or not fields <= set(values) <= fields | set(LATER)
        or not all(isinstance(values.get(key, ""), str) for key in ("name", "part", "encoder", "hash", "unit"))
        or values["kind"] not in get_args(get_type_hints(Column)["kind"])
        or values.get("part", "") not in get_args(Part)
        or not isinstance(values["missing"], bool)
        or not is_texts(values["categories"])
        or not all(isinstance(values[key], int | float) and math.isfinite(values[key]) for key in ("mean", "std"))
        or values["std"] <= 0
        or type(size := values.get("size", 1)) is not int
        or not 1 <= size <= MOST_NUMBERS
    ):
        raise problem
    column = Column(**(values | {"categories": tuple(values["categories"])}))
    is_text = column.kind == "text"
    if (column.part and column.kind != "numeric") or is_text != bool(column.encoder) or (size > 1 and not is_text):
        raise problem
    return column


def read_schema(path: Path) -> TableSchema:
    """A schema from a JSON file."""
    try:
        values = json.loads(existing_file(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        raise DataError(f"{path}: not a JSON file. A schema is written by the site that fitted it.") from None
    return TableSchema.from_dict(values, str(path))


# --- encoding ------------------------------------------------------------------------------------------------------


def encode_rows(table: TextTable, schema: TableSchema) -> NDArray[np.float32]:
    """The features of every row; a category that is not in the schema gets zeros in all its columns."""
    rows = np.zeros((len(table), schema.width), dtype=np.float32)
    start = 0
    for column in schema.columns:
        ENCODERS[column.kind](table, column, rows[:, start : start + column.width])
        start += column.width
    return rows


def encode_numeric(table: TextTable, column: Column, block: NDArray[np.float32]) -> None:
    """Standardise; a missing value becomes the mean, which is zero, and is marked if the schema has a column for it."""
    values = numbers_of(table, column)
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
    codes = positions_of(column, table.column(column.name))
    codes[codes == GONE] = len(column.categories) if column.missing else UNKNOWN
    known = np.flatnonzero(codes >= 0)
    block[known, codes[known]] = 1.0


def encode_ordered(table: TextTable, column: Column, block: NDArray[np.float32]) -> None:
    """The position, standardised; an unknown category is like a missing one."""
    codes = positions_of(column, table.column(column.name))
    block[:, 0] = np.where(codes < 0, 0.0, (codes - column.mean) / column.std)
    if column.missing:
        block[:, 1] = codes < 0


def encode_text(table: TextTable, column: Column, block: NDArray[np.float32]) -> None:
    """The numbers of the encoder on one scale; zeros where there is no text."""
    if (found := opened(column.encoder).hash) != column.hash:
        raise DataError(
            f"{table.path}: column '{column.name}' was read with the encoder {column.encoder} of the hash "
            f"{column.hash[:12]}; here it has the hash {found[:12]}. Install the same version of its package."
        )
    cells = table.column(column.name)
    vectors = vectors_of(cells, column.encoder)
    for start in range(0, len(cells), BLOCK):
        values = vectors[start : start + BLOCK].astype(np.float64)
        block[start : start + BLOCK, : column.size] = (values - column.mean) / column.std
    gone = np.fromiter(map(is_missing, cells), np.bool_, len(cells))
    block[gone] = 0.0
    if column.missing:
        block[:, column.size] = gone


ENCODERS = {
    "numeric": encode_numeric,
    "categorical": encode_categorical,
    "ordered": encode_ordered,
    "text": encode_text,
}


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
