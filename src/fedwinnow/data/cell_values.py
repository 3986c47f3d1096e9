"""The cells of a table as values: numbers, dates and their parts, and positions among categories."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from fedwinnow.data.column import Column, Part
from fedwinnow.data.dates import PARTS, Style, number_of, part_of, style_of
from fedwinnow.data.table_reading import TextTable, is_missing
from fedwinnow.data.truth_values import truths
from fedwinnow.errors import DataError

Numbers = NDArray[np.float64]
STYLES: tuple[Style, ...] = get_args(Style)
UNKNOWN, GONE = -1, -2  # positions of a category that the schema does not have, and of a missing value


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


def parse(table: TextTable, name: str) -> Numbers | None:
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


def finite(table: TextTable, name: str, values: Numbers) -> Numbers:
    """The values of a column; an infinite value is refused."""
    if len(bad := np.flatnonzero(np.isinf(values))):
        row = int(bad[0])
        raise DataError(
            f"{table.place(row)}: column '{name}' has '{table.column(name)[row]:.60}', which is infinite or too large. "
            "Correct it, or leave the cell empty if the value is unknown."
        )
    return values


# --- dates ---------------------------------------------------------------------------------------------------------


def parts_of_dates(table: TextTable, name: str) -> dict[Part, Numbers] | None:
    """The parts of a column of dates or times; None where it is something else."""
    distinct = set(table.column(name))
    found = {cell for cell in distinct if not is_missing(cell)}
    style = style_of(table.path, name, found, table.dates)
    if style is None:
        return None
    lookup = {cell: number_of(cell, style) if cell in found else math.nan for cell in distinct}
    numbers = np.array([lookup[cell] for cell in table.column(name)], dtype=np.float64)
    return {"hour": numbers} if style == "time" else {part: part_of(numbers, part) for part in PARTS}


def numbers_of(table: TextTable, column: Column) -> Numbers:
    """The numbers of a column, or of a part of its dates, NaN where missing; a cell that is no number is refused."""
    if column.part and column.title not in table.columns:
        parts = parts_of_dates(table, column.name) if not all(map(is_missing, table.column(column.name))) else {}
        if parts == {}:
            return np.full(len(table), np.nan)
        if parts is None or column.part not in parts:
            raise unlike_schema(
                table, column, "date", lambda cell: any(number_of(cell, style) is not None for style in STYLES)
            )
        return parts[column.part]
    name = column.title if column.part else column.name  # what a program gives has the parts themselves
    values = parse(table, name)
    if values is None:
        raise unlike_schema(table, column, "number", lambda cell: to_number(cell, table.decimal) is not None)
    return finite(table, name, values)


def unlike_schema(table: TextTable, column: Column, what: str, fits: Callable[[str], bool]) -> DataError:
    """The error for the first cell that is not what the schema says."""
    cells = table.column(column.name)
    row = next((row for row, cell in enumerate(cells) if not is_missing(cell) and not fits(cell)), 0)
    return DataError(
        f"{table.place(row)}: column '{column.name}' has '{cells[row]:.60}', which is not a {what}, unlike the "
        "column that the schema was fitted on. Correct it, or leave the cell empty if the value is unknown."
    )


# --- categories ----------------------------------------------------------------------------------------------------


def positions_of(column: Column, cells: Sequence[str]) -> NDArray[np.int64]:
    """The position of every cell among the categories; UNKNOWN and GONE are negative.

    Words for yes and no are known in any spelling, if the column has nothing else here and in the schema.
    """
    distinct = set(cells)
    places = {category: place for place, category in enumerate(column.categories)}
    lookup = {cell: GONE if is_missing(cell) else places.get(cell, UNKNOWN) for cell in distinct}
    if UNKNOWN in lookup.values() and (meant := truths(column.categories)) is not None:
        there = {cell for cell in distinct if not is_missing(cell)}
        said = truths(there) or ({cell: cell == "1" for cell in there} if there <= {"0", "1"} else {})
        place_of = {meant[category]: place for category, place in places.items()}
        lookup |= {cell: place_of.get(said[cell], UNKNOWN) for cell in said if lookup[cell] == UNKNOWN}
    return np.fromiter((lookup[cell] for cell in cells), dtype=np.int64, count=len(cells))


def merged_truths(counts: Mapping[str, int]) -> tuple[str, ...]:
    """The categories of a column; where yes and no are spelled in several ways, the commonest spelling of each."""
    meant = truths(counts)
    if meant is None or len(counts) == len(set(meant.values())):
        return tuple(sorted(counts))
    commonest = (
        max((cell for cell in counts if meant[cell] == truth), key=lambda cell: (counts[cell], cell), default="")
        for truth in (False, True)
    )
    return tuple(sorted(cell for cell in commonest if cell))
