"""Corrected labels in an .xlsx file: the same workbook with one column of a sheet changed and two added."""

from __future__ import annotations

import io
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import Any

from fedwinnow.auditing.applying.changes import Change
from fedwinnow.auditing.applying.table_labels import (
    GIVEN,
    SOURCE,
    check_columns,
    names_of,
    places_by_id,
    places_of_changes,
    written_as,
)
from fedwinnow.data.sources.excel import Excel, in_words, refuse_bomb, shown_first
from fedwinnow.data.table_reading import TextTable, cell_text
from fedwinnow.errors import DataError, missing_extra


def corrected_excel(path: Path, source: Excel, changes: dict[str, Change]) -> bytes:
    """The file with corrected labels; formulas and formats stay."""
    table = source.read(path)
    check_columns(path, source, table.names)
    labels = list(table.column(source.label))
    names = names_of(labels, changes)
    wanted = places_of_changes(path, places_by_id(source, table.columns, len(table)), changes, labels, names)
    book = loaded(path)
    sheet = shown_first(book.worksheets) if source.sheet is None else book[source.sheet]
    first, columns = header_of(sheet, source.header)
    values = {in_words(cell.value): cell.value for cell in cells_of(sheet, table, columns[source.label])}
    spelling = written_as(labels, names)
    if GIVEN not in columns:  # otherwise it was corrected before, and the first labels are in that column
        columns |= {GIVEN: max(columns.values()) + 1, SOURCE: max(columns.values()) + 2}
        for name in (GIVEN, SOURCE):
            sheet.cell(first, columns[name], name)
        for cell in cells_of(sheet, table, columns[source.label]):
            sheet.cell(cell.row, columns[GIVEN], cell.value)
            sheet.cell(cell.row, columns[SOURCE], "given")
    for place, change in wanted.items():
        text = spelling[change.label]
        sheet.cell(int(table.lines[place]), columns[source.label], values.get(text, text))
        sheet.cell(int(table.lines[place]), columns[SOURCE], change.source)
    return content_of(book)


def reversed_excel(path: Path, label: str) -> bytes:
    """The file with its first labels, without the two added columns."""
    book = loaded(path)
    for sheet in book.worksheets:
        first, columns = header_of(sheet, having={GIVEN, SOURCE, label})
        if first:
            for row in range(first + 1, sheet.max_row + 1):
                if sheet.cell(row, columns[SOURCE]).value is not None:
                    sheet.cell(row, columns[label], sheet.cell(row, columns[GIVEN]).value)
            for name in sorted((GIVEN, SOURCE), key=lambda name: -columns[name]):
                sheet.delete_cols(columns[name])
            return content_of(book)
    raise DataError(f"{path} has no sheet with the columns {label}, {GIVEN} and {SOURCE}, so nothing can be undone.")


def loaded(path: Path) -> Any:
    """The workbook with its formulas."""
    try:
        import openpyxl
    except ImportError:
        raise missing_extra("excel", "writing .xlsx files") from None
    refuse_bomb(path)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="openpyxl")  # about styles and extensions of the format
            return openpyxl.load_workbook(path)
    except Exception as problem:  # openpyxl and zipfile raise nearly anything on a broken file
        raise DataError(f"{path}: not a readable .xlsx file ({str(problem)[:200]}).") from None


def header_of(sheet: Any, line: int | None = None, having: Collection[str] = ()) -> tuple[int, dict[str, int]]:
    """The number of the row with the names, and the column of each; 0 if there is none."""
    for number, row in enumerate(sheet.iter_rows(values_only=True), start=1):
        columns = {cell_text(value): place for place, value in enumerate(row, start=1) if cell_text(value)}
        if columns and (line is None or number == line) and columns.keys() >= set(having):
            return number, columns
    return 0, {}


def cells_of(sheet: Any, table: TextTable, column: int) -> list[Any]:
    """The cells of a column in the rows of the table."""
    return [sheet.cell(int(line), column) for line in table.lines]


def content_of(book: Any) -> bytes:
    """A workbook as the content of a file."""
    stream = io.BytesIO()
    book.save(stream)
    return stream.getvalue()
