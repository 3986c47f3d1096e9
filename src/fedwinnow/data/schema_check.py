"""A table held against the columns of another one: what a model of that one would misread is said."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np

from fedwinnow.data.cell_values import UNKNOWN, numbers_and_unit, numbers_of, positions_of
from fedwinnow.data.column import Column
from fedwinnow.data.dates import as_date
from fedwinnow.data.labels import name_some
from fedwinnow.data.table_reading import TextTable, is_missing
from fedwinnow.errors import FedwinnowWarning

FAR = 10  # deviations between two means from which on the units are probably not the same


def tell_differences(table: TextTable, columns: Iterable[Column], other: str) -> list[str]:
    """Warn of categories that `other` does not have, of missing values where it has none, and of other units."""
    found = list(differences(table, columns, other))
    for line in found:
        warnings.warn(f"{table.path}: {line}.", FedwinnowWarning, stacklevel=3)
    return found


def differences(table: TextTable, columns: Iterable[Column], other: str) -> Iterator[str]:
    """A sentence for everything that differs."""
    for column in columns:
        if column.part in ("month", "weekday", "hour") and column.title not in table.columns:
            continue  # the day tells
        cells = table.column(column.title if column.title in table.columns else column.name)
        told = new_categories(column, cells, other) if column.categories else ""
        told = told or (other_units(table, column, other) if column.kind == "numeric" else "")
        if not told and not column.missing and any(is_missing(cell) for cell in set(cells)):
            rows = sum(is_missing(cell) for cell in cells)
            instead = "they count as none of the known values" if column.kind == "categorical" else "the mean is used"
            told = f"has no value in {rows} rows, which {other} did not have; {instead}"
        if told:
            yield f"column '{column.name}' {told}"


def new_categories(column: Column, cells: Iterable[str], other: str) -> str:
    """What is said of categories that the other data did not have."""
    listed = list(cells)
    strange = np.flatnonzero(positions_of(column, listed) == UNKNOWN)
    new = Counter(listed[row] for row in strange.tolist())
    if not new:
        return ""
    shown = name_some([f"'{cell:.40}' ({count} rows)" for cell, count in new.most_common()], 3)
    return f"has values that {other} did not have: {shown}; they count as none of the known values"


def other_units(table: TextTable, column: Column, other: str) -> str:
    """What is said of a column whose mean is ten deviations off."""
    if column.unit and (found := numbers_and_unit(table, column.name)) and found[1] not in ("", column.unit):
        return f"has the unit {found[1]}; in {other} it was {column.unit}. Convert it, or models will misread every row"
    values = numbers_of(table, column)
    known = values[~np.isnan(values)]
    if not len(known):
        return ""
    scale = max(float(np.abs(known).max()), 1.0)
    mean = float((known / scale).mean()) * scale  # the sum of large numbers could overflow
    off = abs(mean / 2 - column.mean / 2) / column.std * 2
    if not off > FAR:
        return ""
    if column.part == "day":
        return f"has dates around {as_date(mean)}; in {other} they were around {as_date(column.mean)}"
    return (
        f"has the mean {mean:.4g}; in {other} it was {column.mean:.4g} with a deviation of {column.std:.3g}, so it is "
        f"{off:.3g} deviations off. Probably it is in another unit: convert it, or models will misread every row"
    )
