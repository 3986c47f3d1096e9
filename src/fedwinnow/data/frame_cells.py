"""The cells of a data frame of a program: of pandas, and of whatever has columns by name as its frames have."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np

from fedwinnow.data.table_reading import TextTable, as_texts
from fedwinnow.errors import DataError

NO_CELLS = (list, tuple, dict, set, frozenset, np.ndarray, bytes, complex, datetime.timedelta, np.timedelta64)


def is_frame(values: Any) -> bool:
    """Whether this is a data frame; its package need not be imported to know."""
    return hasattr(values, "columns") and hasattr(values, "items")


# --- frames as tables of cells -------------------------------------------------------------------------------------


def table_of(values: Any, where: str) -> TextTable:
    """A data frame, or a dictionary of columns, as the CSV file would be read that it can be saved as.

    What a CSV file cannot say is kept: categories in an order, and numbers that are names of categories.
    """
    columns: dict[str, list[str]] = {}
    unreadable: dict[str, str] = {}
    orders: dict[str, tuple[str, ...]] = {}
    named: set[str] = set()
    for given, column in values.items():
        if isinstance(given, tuple):
            raise DataError(f"{where}: the columns have names of several levels, such as {given}. Give each one name.")
        name = str(given)
        if name in columns or name in unreadable:
            raise DataError(f"{where}: two columns have the name '{name}'. Rename one of them.")
        cells = list(column)
        strange = next((cell for cell in cells if isinstance(cell, NO_CELLS)), None)
        if strange is not None:
            unreadable[name] = f"values of the type {type(strange).__name__}"
            continue
        columns[name] = as_texts(map(plain, cells))
        if (kinds := getattr(getattr(column, "dtype", None), "categories", None)) is not None:
            named.add(name)
            if column.dtype.ordered:
                orders[name] = tuple(as_texts(map(plain, kinds)))
    lengths = {len(column) for column in columns.values()}
    if len(lengths) != 1 or lengths == {0}:
        raise DataError(f"{where}: columns of one length, with at least one row, are needed; found {sorted(lengths)}.")
    return TextTable(Path(where), columns, unreadable=unreadable, orders=orders, named=frozenset(named))


def plain(value: Any) -> Any:
    """A value of a table as a CSV file would have it: what pandas calls missing is empty, 2.0 stays 2.0."""
    if value is None or type(value).__name__ in ("NAType", "NaTType") or value != value:
        return None
    return value.item() if isinstance(value, np.generic) else value
