"""Tables that people open in a spreadsheet and save again: what it would run as a formula is made harmless, and what
it changes about the file (separator, decimal comma, encoding) is read back.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedwinnow.errors import DataError

FORMULA = "=+-@\t\r\n"  # a cell that begins with one of these may be taken for a formula
NUMBER = re.compile(r"[+-]?([0-9]+([.,][0-9]*)?|[.,][0-9]+)([eE][+-]?[0-9]+)?")
UTF_16 = (b"\xff\xfe", b"\xfe\xff")

Row = dict[str, str]


def harmless(cell: Any) -> Any:
    """A text that a spreadsheet shows and does not run: one that looks like a formula gets an apostrophe before it.

    A text with apostrophes before a formula gets one more, so that `as_given` can always take one away.
    """
    if not isinstance(cell, str) or NUMBER.fullmatch(cell):
        return cell
    return f"'{cell}" if cell.lstrip("'").startswith(tuple(FORMULA)) else cell


def as_given(cell: str) -> str:
    """The text that `harmless` was given."""
    return cell[1:] if cell.startswith("'") and cell.lstrip("'").startswith(tuple(FORMULA)) else cell


def table_text(header: Sequence[str], rows: Any) -> str:
    """A CSV file as text."""
    lines = [header, *([harmless(cell) for cell in row] for row in rows)]
    return "".join(",".join(map(quoted, line)) + "\n" for line in lines)


def quoted(cell: Any) -> str:
    """A cell of a CSV file; Python's own writer leaves a carriage return without quotes, which ends a line."""
    text = "" if cell is None else str(cell)
    return '"' + text.replace('"', '""') + '"' if any(sign in text for sign in ',"\r\n') else text


def read_table(path: Path, needed: Sequence[str], numbers: Sequence[str] = ()) -> list[Row]:
    """The rows below the header, by column; `numbers` are columns in which a decimal comma is a decimal point.

    Comma, semicolon and tab separate, with or without byte order mark. Empty lines, and empty cells behind the last
    column, are left out, because spreadsheets add them.
    """
    text = text_of_table(path)
    first = text.lstrip().partition("\n")[0]
    delimiter = max(",;\t", key=first.count)  # no name of a column of ours has one of these
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    rows: list[Row] = []
    header: list[str] = []
    try:
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if not header:
                header = named_columns(path, cells, needed)
                continue
            if len(cells) < len(header) or any(cells[len(header) :]):
                raise DataError(
                    f"{path}, row {len(rows) + 1} (line {reader.line_num}): it does not have as many cells as the "
                    "first line."
                )
            rows.append({name: as_given(cell) for name, cell in zip(header, cells, strict=False)})
    except csv.Error as problem:
        raise DataError(f"{path}, line {reader.line_num}: cannot be read ({problem}).") from None
    if not header:
        raise DataError(f"{path} is empty; needed: a first line with {', '.join(needed)}.")
    if delimiter != ",":
        for row in rows:
            for name in numbers:
                if NUMBER.fullmatch(row.get(name, "").strip()):
                    row[name] = row[name].strip().replace(",", ".")
    return rows


def named_columns(path: Path, cells: Sequence[str], needed: Sequence[str]) -> list[str]:
    """The names of the columns; refuses a file without those that are needed."""
    header = [cell.strip() for cell in cells]
    while header and not header[-1]:
        header.pop()
    absent = [name for name in needed if name not in header]
    if absent:
        raise DataError(f"{path} has no column '{absent[0]}'; needed: {', '.join(needed)}.")
    return header


def text_of_table(path: Path) -> str:
    """The text of the file: UTF-8, or the UTF-16 of a spreadsheet's "Unicode text"."""
    try:
        content = path.read_bytes()
    except OSError as problem:
        raise DataError(f"{path}: cannot be read ({problem.strerror or problem}).") from None
    try:
        return content.decode("utf-16" if content.startswith(UTF_16) else "utf-8-sig")
    except UnicodeDecodeError:
        line = content.split(b"\n")
        number = next((place for place, part in enumerate(line, start=1) if not is_utf8(part)), 1)
        raise DataError(
            f"{path}, line {number}: cannot be read, it is not UTF-8 text. In the spreadsheet, save it as "
            '"CSV UTF-8 (comma delimited)".'
        ) from None


def is_utf8(content: bytes) -> bool:
    """Whether the bytes are UTF-8 text."""
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True
