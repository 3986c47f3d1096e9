"""The cells of a table as values: numbers, dates and their parts, and positions among categories."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from fedwinnow.data.column import Column, Part
from fedwinnow.data.dates import PARTS, Style, number_of, part_of, style_of
from fedwinnow.data.number_forms import GROUPED, NumberForm, form_of, number_in, unit_in
from fedwinnow.data.table_reading import TextTable, is_missing
from fedwinnow.data.truth_values import truths
from fedwinnow.errors import DataError, FedwinnowWarning

Numbers = NDArray[np.float64]
STYLES: tuple[Style, ...] = get_args(Style)
UNKNOWN, GONE = -1, -2  # positions of a category that the schema does not have, and of a missing value


def parse(table: TextTable, name: str) -> Numbers | None:
    """A column as numbers, NaN where a value is missing; None where a cell is a text."""
    found = numbers_and_unit(table, name)
    return None if found is None else found[0]


def numbers_and_unit(table: TextTable, name: str) -> tuple[Numbers, str] | None:
    """A column as numbers, and the unit that its cells name; None where a cell is a text."""
    cells = table.column(name)
    try:
        values = np.fromiter(map(float, cells), dtype=np.float64, count=len(cells))
        if "_" not in "".join(cells) and not may_have_groups(table, cells):
            return values, ""
    except ValueError:
        pass  # a missing cell, a comma, a unit or a text: look at each different cell
    distinct = set(cells)
    present = [cell for cell in distinct if not is_missing(cell)]
    if table.asked_decimal != "point" and (plain := with_decimal_commas(table, present)):
        plain |= dict.fromkeys(distinct - plain.keys(), math.nan)
        return np.fromiter((plain[cell] for cell in cells), dtype=np.float64, count=len(cells)), ""
    form = form_of(present, table.decimal, table.asked_decimal)
    if form is None:
        return None
    if form.doubtful:
        form = settled(table, name, form, present)
    lookup = dict.fromkeys(distinct, math.nan) | {cell: form.number(cell) for cell in present}
    if None in lookup.values():
        return None
    return np.fromiter((lookup[cell] for cell in cells), dtype=np.float64, count=len(cells)), form.unit


def with_decimal_commas(table: TextTable, cells: list[str]) -> dict[str, float] | None:
    """The numbers in cells whose commas are surely decimal ones, quickly; None where another look is needed."""
    joined = "\0".join(cells)
    if "," not in joined or "." in joined or "_" in joined:
        return None
    pointed = joined.replace(",", ".").split("\0")
    try:
        values = list(map(float, pointed))
    except ValueError:
        return None
    doubtful = table.asked_decimal == "auto" and all(GROUPED.fullmatch(cell) for cell in pointed if "." in cell)
    # Between semicolons a comma is the decimal sign, unless other columns have decimal points.
    if doubtful and (table.decimal != "," or table.decimal_of_all == "."):
        return None
    return dict(zip(cells, values, strict=True))


def may_have_groups(table: TextTable, cells: Sequence[str]) -> bool:
    """Whether the points in cells that are all numbers may separate thousands."""
    if table.asked_decimal == "comma":
        return any("." in cell for cell in cells)
    if table.decimal == "." or table.asked_decimal == "point":
        return False
    some = False
    for cell in cells:
        if "." in cell:
            if not GROUPED.fullmatch(cell):
                return False
            some = True
    return some


def settled(table: TextTable, name: str, form: NumberForm, cells: Sequence[str]) -> NumberForm:
    """The form of numbers such as 1.234, as the other columns of the file write theirs; a guess is said.

    Where all cells are such numbers, the two readings differ in their scale only, so there is nothing to say.
    """
    if table.decimal_of_all:
        return replace(form, decimal=table.decimal_of_all)
    if form.doubtful == table.decimal or all(form.doubtful in cell for cell in cells):
        return form
    sign = {".": "point", ",": "comma"}[form.doubtful]
    other = {"point": "comma", "comma": "point"}[sign]
    taken, instead = (
        (f"the {sign} is taken as the decimal sign", f"decimal={other} if it separates thousands")
        if form.decimal == form.doubtful
        else (f"the {sign} is taken to separate thousands", f"decimal={sign} if it is the decimal sign")
    )
    rid = sign if form.decimal == form.doubtful else other
    warnings.warn(
        f"{table.path}: column '{name}' has numbers such as {'1' + form.doubtful + '234'} that can be read in two "
        f"ways; {taken}. Write {instead}, and decimal={rid} to be rid of this line.",
        FedwinnowWarning,
        stacklevel=2,
    )
    return form


def looks_like_number(cell: str) -> bool:
    """Whether a cell is missing, or a number in some form."""
    return is_missing(cell) or unit_in(cell) is not None or number_in(cell, ".") is not None


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
        raise unlike_schema(table, column, "number", looks_like_number)
    return finite(table, name, values)


def unlike_schema(table: TextTable, column: Column, what: str, fits: Callable[[str], bool]) -> DataError:
    """The error for the first cell that is not what the schema says."""
    cells = table.column(column.name)
    row = next((row for row, cell in enumerate(cells) if not is_missing(cell) and not fits(cell)), None)
    if row is None:
        return DataError(
            f"{table.path}: column '{column.name}' writes its {what}s in several ways or units, so that they cannot be "
            "told apart. Write them alike."
        )
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
