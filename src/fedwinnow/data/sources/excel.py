"""Tables in the files of spreadsheets."""

from __future__ import annotations

import re
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedwinnow.data.labels import name_some
from fedwinnow.data.packed_cells import Packing
from fedwinnow.data.source_files import ALWAYS_ALLOWED, MOST_TIMES, existing_file
from fedwinnow.data.sources.table_source import TableSource
from fedwinnow.data.table_layout import (
    AS_FOUND,
    LOOKED_AT,
    Layout,
    filled_to,
    hint_of_line,
    refuse_doubles,
    refuse_nameless,
    refuse_totals,
    without_last,
)
from fedwinnow.data.table_reading import PIECE, TextTable, cell_text
from fedwinnow.data.text_encoding import CONTROL
from fedwinnow.errors import DataError, FedwinnowWarning, missing_extra, unknown
from fedwinnow.options import option

FAULTS = frozenset({"#N/A", "#DIV/0!", "#REF!", "#VALUE!", "#NAME?", "#NUM!", "#NULL!"})
MOST_COLUMNS = 16_384  # that a sheet can have
BLOCK = 1 << 20  # bytes
OLD = b"\xd0\xcf\x11\xe0"  # how a file of Excel up to 2003 begins, and one with a password

Line = tuple[int, tuple[Any, ...]]  # the number of a row in the sheet, and its cells


@dataclass(frozen=True)
class Excel(TableSource):
    """A sheet of an .xlsx file; its columns are used like those of a CSV file (needs the extra `excel`).

    The first row that is not empty has the names of the columns. Formulas count with the value that was saved.
    """

    name: ClassVar[str] = "excel"

    sheet: str | None = option(None, "The name of the sheet; without it the first one that is not hidden.")
    header: int | None = option(None, "The row with the names of the columns; rows above it are left out.", at_least=1)
    footer: int | None = option(
        None,
        "How many rows at the end do not belong to the table (totals, notes); without it a row of totals is refused.",
        at_least=0,
        at_most=1000,
    )

    def read_file(self, path: Path) -> TextTable:
        with opened(path) as book:
            sheet = chosen_sheet(path, book, self.sheet)
            return read_sheet(path, sheet, Layout(self.header, self.footer))


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
        beginning = stream.read(1024)
    if beginning.startswith(OLD):
        raise DataError(f"{path}: an old .xls file, or one with a password. Save it as .xlsx without a password.")
    if not beginning.startswith(b"PK") and beginning and not CONTROL.search(beginning):
        raise DataError(f"{path}: a text file, whatever its name says. Read it with csv:path={path}")
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
    """The sheet that was asked for, or the first one that is not hidden; the others are named."""
    sheets = {sheet.title: sheet for sheet in book.worksheets}
    if not sheets:
        raise DataError(f"{path} has no sheet with cells.")
    if asked is not None:
        if asked not in sheets:
            raise DataError(f"{path}: {unknown('sheet', asked, sheets)}")
        return sheets[asked]
    first = shown_first(sheets.values()).title
    others = [
        name if sheet.sheet_state == "visible" else f"{name} (hidden)"
        for name, sheet in sheets.items()
        if name != first
    ]
    if others:
        warnings.warn(
            f"{path}: the sheet '{first}' was read; sheet=NAME chooses another one: {', '.join(others)}.",
            FedwinnowWarning,
            stacklevel=4,
        )
    return sheets[first]


def shown_first(sheets: Iterable[Any]) -> Any:
    """The first sheet that is not hidden."""
    listed = list(sheets)
    return next((sheet for sheet in listed if sheet.sheet_state == "visible"), listed[0])


def read_sheet(path: Path, sheet: Any, layout: Layout = AS_FOUND) -> TextTable:
    """The cells of a sheet as texts, read piece by piece."""
    sheet.reset_dimensions()  # a file may state any size
    marks = marks_of(sheet)
    above, first, rows = table_in(path, sheet, layout)
    header = [cell_text(value) for value in trimmed(first[1])]
    refuse_doubles(path, header, first[0])
    packed = {place: Packing() for place, name in enumerate(header) if name}
    lines, faults, strange = list[int](), Counter[str](), set[int]()
    while piece := list(islice(rows, PIECE)):
        if not lines:
            refuse_merged(path, sheet.title, marks, first, hint_of_sheet([*above, first, *piece], layout))
        lines += [number for number, _ in piece]
        for place, name in enumerate(header):
            cells = [in_words(row[place]) if place < len(row) else "" for _, row in piece]
            faults[name] += sum(cell in FAULTS for cell in cells)
            cells = ["" if cell in FAULTS else cell for cell in cells]
            if name:
                packed[place].add(cells)
            elif any(cells):
                strange.add(place)
        for number, row in piece:
            if len(trimmed(row)) > len(header):
                hint = hint_of_sheet([*above, first, *piece], layout)
                raise DataError(
                    f"{path}, row {lines.index(number) + 1} (line {number}): a cell stands to the right of the columns "
                    f"that have names; line {first[0]} names {len(header)}. "
                    + (hint or "Name its column, or empty the cell.")
                )
        if strange:
            refuse_nameless(path, strange, first[0], hint_of_sheet([*above, first, *piece], layout))
    if not lines:
        raise DataError(f"{path} has a row with column names but no row below it.")
    if +faults:
        told = ", ".join(f"'{name}' ({count} rows)" for name, count in (+faults).items())
        warnings.warn(
            f"{path}: cells with an error of the spreadsheet (#N/A, #DIV/0!) count as missing: {told}.",
            FedwinnowWarning,
            stacklevel=4,
        )
    tell_hidden(path, sheet.title, marks, set(lines), header)
    columns = {header[place]: packing.packed() for place, packing in packed.items()}
    table = TextTable(path, columns, np.array(lines, np.int64))
    if layout.footer is None:
        refuse_totals(columns, table.place(len(table) - 1))
    return table


def table_in(path: Path, sheet: Any, layout: Layout) -> tuple[list[Line], Line, Iterator[Line]]:
    """The lines above the names, the names, and the rows below them without the footer."""
    found, above = filled_rows(path, sheet), list[Line]()
    for line in found:
        if layout.header is None or line[0] == layout.header:
            return above, line, without_last(found, layout.footer or 0)
        above.append(line)
        if line[0] > layout.header:
            break
    if layout.header is None:
        raise DataError(f"{path} is empty; a row with the names of the columns and at least one row below are needed.")
    raise DataError(f"{path}: line {layout.header} (header={layout.header}) is empty. Give the line with the names.")


def filled_rows(path: Path, sheet: Any) -> Iterator[Line]:
    """The rows with a value, each with its number in the sheet."""
    for number, row in enumerate(sheet.iter_rows(values_only=True), start=1):
        if len(row) > MOST_COLUMNS:
            raise DataError(f"{path}, row {number}: {len(row)} cells; a sheet has at most {MOST_COLUMNS} columns.")
        if any(value is not None and (not isinstance(value, str) or value.strip()) for value in row):
            yield number, row


def hint_of_sheet(beginning: Sequence[Line], layout: Layout) -> str:
    """What an error says of the line in which the names probably stand."""
    looked_at = beginning[:LOOKED_AT]
    widths = Counter(filled_to(row) for _, row in looked_at)
    usual = max(widths, key=lambda width: (widths[width], width))
    names = next(number for number, row in looked_at if filled_to(row) >= usual)
    above = [number for number, _ in looked_at if number < names]
    return hint_of_line(names, above) if above and layout.header is None else ""


# --- what a spreadsheet shows otherwise than it stores -------------------------------------------------------------

MARK = re.compile(
    rb"<(?:\w+:)?(?:mergeCell\b[^>]{0,200}?\bref=[\"'](?P<merged>[A-Z]{1,3}\d{1,7}:[A-Z]{1,3}\d{1,7})[\"']"
    rb"|(?P<kind>row|col)\b(?P<said>[^>]{0,400}?\bhidden=[\"'](?:1|true)[\"'][^>]{0,400}))"
)
LONGEST_MARK = 1000  # bytes


@dataclass(frozen=True)
class Marks:
    """Which cells of a sheet are merged, and which rows and columns are hidden."""

    merged: tuple[str, ...] = ()
    rows: tuple[int, ...] = ()
    columns: tuple[int, ...] = ()  # counted from 1


def marks_of(sheet: Any) -> Marks:
    """The marks in the file of a sheet; the package does not give them for files that are read piece by piece."""
    merged, rows, columns = list[str](), list[int](), list[int]()
    with sheet._get_source() as source:
        rest = b""
        while block := source.read(BLOCK):
            content, end = rest + block, 0
            for found in MARK.finditer(content):
                end = found.end()
                if found["merged"]:
                    merged.append(found["merged"].decode())
                elif found["kind"] == b"row":
                    rows += numbers_said(found["said"], b"r")[:1]
                else:
                    low, high = (numbers_said(found["said"], name)[:1] or [0] for name in (b"min", b"max"))
                    columns += range(low[0], min(high[0], MOST_COLUMNS) + 1)
            rest = content[max(end, len(content) - LONGEST_MARK) :]
    return Marks(tuple(merged), tuple(rows), tuple(columns))


def numbers_said(attributes: bytes, name: bytes) -> list[int]:
    """The number in an attribute."""
    return [int(one) for one in re.findall(rb"\b" + name + rb"=[\"'](\d{1,7})[\"']", attributes)]


def refuse_merged(path: Path, title: str, marks: Marks, names: Line, hint: str) -> None:
    """Refuse merged cells in the table: only the first of them has a value."""
    from openpyxl.utils.cell import range_boundaries

    columns, bounds = filled_to(names[1]), {one: range_boundaries(one) for one in marks.merged}
    inside = [one for one, (left, _, _, bottom) in bounds.items() if bottom >= names[0] and left <= columns]
    if inside:
        raise DataError(
            f"{path}, sheet '{title}': cells of the table are merged ({name_some(inside, 3)}). "
            + (
                hint
                or "Only the first of merged cells has a value, and the others would count as missing. Undo the "
                "merging and fill every cell."
            )
        )


def tell_hidden(path: Path, title: str, marks: Marks, lines: set[int], header: Sequence[str]) -> None:
    """Say that rows and columns were read that the spreadsheet does not show."""
    rows = [str(row) for row in marks.rows if row in lines]
    columns = [f"'{header[place - 1]}'" for place in marks.columns if place <= len(header) and header[place - 1]]
    for what, found, advice in (
        ("rows (line", rows, "Delete them in the file if they do not belong to the table"),
        ("columns (", columns, "ignore=COLUMN leaves them out"),
    ):
        if found:
            warnings.warn(
                f"{path}, sheet '{title}': {len(found)} {what} {name_some(found, 3)}) ".replace("( ", "(")
                + f"are hidden in the spreadsheet, and were read all the same. {advice}.",
                FedwinnowWarning,
                stacklevel=5,
            )


# --- cells ---------------------------------------------------------------------------------------------------------


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
