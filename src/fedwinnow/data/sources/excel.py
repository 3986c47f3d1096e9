"""Tables in the files of spreadsheets."""

from __future__ import annotations

import warnings
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedwinnow.data.packed_cells import Packing
from fedwinnow.data.source_files import ALWAYS_ALLOWED, MOST_TIMES, existing_file
from fedwinnow.data.sources.table_source import TableSource
from fedwinnow.data.table_reading import PIECE, TextTable, cell_text, check_header
from fedwinnow.errors import DataError, FedwinnowWarning, missing_extra, unknown
from fedwinnow.options import option

FAULTS = frozenset({"#N/A", "#DIV/0!", "#REF!", "#VALUE!", "#NAME?", "#NUM!", "#NULL!"})
MOST_COLUMNS = 16_384  # that a sheet can have
OLD = b"\xd0\xcf\x11\xe0"  # how a file of Excel up to 2003 begins, and one with a password


@dataclass(frozen=True)
class Excel(TableSource):
    """A sheet of an .xlsx file; its columns are used like those of a CSV file (needs the extra `excel`).

    The first row that is not empty has the names of the columns. Formulas count with the value that was saved.
    """

    name: ClassVar[str] = "excel"

    sheet: str | None = option(None, "The name of the sheet; without it the first one.")

    def read_file(self, path: Path) -> TextTable:
        with opened(path) as book:
            sheet = chosen_sheet(path, book, self.sheet)
            return read_sheet(path, sheet)


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """The workbook in a file; whatever the package raises while it is read becomes an error of ours."""
    try:
        import openpyxl
    except ImportError:
        raise missing_extra("excel", "reading .xlsx files") from None
    refuse_bomb(existing_file(path))
    book = None
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="openpyxl")  # about styles and extensions of the format
            book = openpyxl.load_workbook(path, read_only=True, data_only=True, keep_links=False)
            yield book
    except DataError:
        raise
    except Exception as problem:  # openpyxl, its XML parser and zipfile raise nearly anything on a broken file
        reason = str(problem).split("\n")[0][:200] or type(problem).__name__
        raise DataError(f"{path}: not a readable .xlsx file ({reason}). Save it again in the spreadsheet.") from None
    finally:
        if book is not None:
            book.close()


def refuse_bomb(path: Path) -> None:
    """Refuse a file that is no archive, and a small one that would fill the memory, before it is unpacked."""
    with path.open("rb") as stream:
        if stream.read(4) == OLD:
            raise DataError(f"{path}: an old .xls file, or one with a password. Save it as .xlsx without a password.")
    try:
        with zipfile.ZipFile(path) as archive:
            total = sum(info.file_size for info in archive.infolist())
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as problem:
        raise DataError(f"{path}: not a readable .xlsx file ({problem}). Save it again in the spreadsheet.") from None
    if total > max(ALWAYS_ALLOWED, MOST_TIMES * path.stat().st_size):
        raise DataError(
            f"{path}: {total / 1e9:.3g} GB would come out of a file of {path.stat().st_size / 1e6:.3g} MB; allowed: "
            f"{ALWAYS_ALLOWED / 1e9:.3g} GB, or {MOST_TIMES} times the size of the file. Save the table as CSV."
        )


def chosen_sheet(path: Path, book: Any, asked: str | None) -> Any:
    """The sheet that was asked for, or the first one; the others are named."""
    sheets = {sheet.title: sheet for sheet in book.worksheets}
    if not sheets:
        raise DataError(f"{path} has no sheet with cells.")
    if asked is not None:
        if asked not in sheets:
            raise DataError(f"{path}: {unknown('sheet', asked, sheets)}")
        return sheets[asked]
    first, *others = sheets
    if others:
        warnings.warn(
            f"{path}: the sheet '{first}' was read; sheet=NAME chooses another one: {', '.join(others)}.",
            FedwinnowWarning,
            stacklevel=4,
        )
    return sheets[first]


def read_sheet(path: Path, sheet: Any) -> TextTable:
    """The cells of a sheet as texts, read piece by piece."""
    sheet.reset_dimensions()  # a file may state any size
    rows = filled_rows(path, sheet)
    first = next(rows, None)
    if first is None:
        raise DataError(f"{path} is empty; a row with the names of the columns and at least one row below are needed.")
    header = [cell_text(value) for value in trimmed(first[1])]
    check_header(path, header)
    packed, lines, faults = [Packing() for _ in header], [], Counter[str]()
    while piece := list(islice(rows, PIECE)):
        lines += [number for number, _ in piece]
        for place, (name, packing) in enumerate(zip(header, packed, strict=True)):
            cells = [in_words(row[place]) if place < len(row) else "" for _, row in piece]
            faults[name] += sum(cell in FAULTS for cell in cells)
            packing.add(["" if cell in FAULTS else cell for cell in cells])
        for number, row in piece:
            if len(trimmed(row)) > len(header):
                raise DataError(
                    f"{path}, row {number - first[0]} (line {number}): a cell stands to the right of the columns that "
                    f"have names; the first line names {len(header)}. Name its column, or empty the cell."
                )
    if not lines:
        raise DataError(f"{path} has a row with column names but no row below it.")
    if +faults:
        told = ", ".join(f"'{name}' ({count} rows)" for name, count in (+faults).items())
        warnings.warn(
            f"{path}: cells with an error of the spreadsheet (#N/A, #DIV/0!) count as missing: {told}.",
            FedwinnowWarning,
            stacklevel=4,
        )
    columns = {name: packing.packed() for name, packing in zip(header, packed, strict=True)}
    return TextTable(path, columns, np.array(lines, np.int64))


def filled_rows(path: Path, sheet: Any) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """The rows with a value, each with its number in the sheet."""
    for number, row in enumerate(sheet.iter_rows(values_only=True), start=1):
        if len(row) > MOST_COLUMNS:
            raise DataError(f"{path}, row {number}: {len(row)} cells; a sheet has at most {MOST_COLUMNS} columns.")
        if any(value is not None and value != "" for value in row):
            yield number, row


def trimmed(row: tuple[Any, ...]) -> list[Any]:
    """A row without the empty cells at its end."""
    cells = list(row)
    while cells and (cells[-1] is None or str(cells[-1]).strip() == ""):
        cells.pop()
    return cells


def in_words(value: Any) -> str:
    """The value of a cell as a CSV file would have it; a date without a time is a date."""
    if isinstance(value, datetime):
        at_midnight = (value.hour, value.minute, value.second, value.microsecond) == (0, 0, 0, 0)
        return value.date().isoformat() if at_midnight else value.isoformat(sep=" ", timespec="seconds")
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return repr(value.total_seconds() / 3600)  # a duration, in hours
    return cell_text(value).replace("\0", "")
