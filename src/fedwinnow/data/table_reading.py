"""Reading tables: columns of texts, and the line of every row for error messages."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwinnow.data.source_files import existing_file
from fedwinnow.errors import DataError, unknown

MISSING = frozenset({"", "na", "n/a", "nan", "null"})
LONGEST_NAME = 1000  # an id or a site; such a column is stored as wide as its longest text


@dataclass(frozen=True)
class TextTable:
    """Columns of texts, all of one length."""

    path: Path
    columns: dict[str, list[str]]
    lines: Sequence[int] = ()  # the line of each row, where the file has lines
    decimal: str = "."
    unreadable: dict[str, str] = field(default_factory=dict)  # columns that cannot become texts, with their type

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), []))

    @property
    def names(self) -> list[str]:
        return [*self.columns, *self.unreadable]

    def place(self, row: int) -> str:
        """Where a row is, for an error message; rows are counted from 1."""
        line = f" (line {self.lines[row]})" if len(self.lines) else ""
        return f"{self.path}, row {row + 1}{line}"

    def column(self, name: str) -> list[str]:
        """A column by name, or an error that lists the names and guesses."""
        if name in self.unreadable:
            raise DataError(
                f"{self.path}: column '{name}' holds {self.unreadable[name]}; allowed: numbers, texts, dates and "
                f"true/false. Leave it out with ignore={name}"
            )
        if name not in self.columns:
            raise DataError(
                f"{self.path}: {unknown('column', name, self.names)} The options label=, site=, group=, id= and true= "
                "name columns."
            )
        return self.columns[name]

    def filled(self, name: str, purpose: str) -> list[str]:
        """A column in which every cell must have a value."""
        cells = self.column(name)
        absent = {cell for cell in set(cells) if is_missing(cell)}
        if absent:
            row = next(row for row, cell in enumerate(cells) if cell in absent)
            raise DataError(
                f"{self.place(row)}: the {purpose} (column '{name}') is missing: '{cells[row]}'. "
                "Fill it in or remove the row; empty, NA, N/A, nan and null count as missing."
            )
        return cells

    def name_column(self, name: str, purpose: str) -> NDArray[np.str_]:
        """A column of ids or sites as an array."""
        cells = self.filled(name, purpose)
        for row, cell in enumerate(cells):
            if len(cell) > LONGEST_NAME:
                raise DataError(
                    f"{self.place(row)}: the {purpose} (column '{name}') has {len(cell)} characters; "
                    f"allowed: at most {LONGEST_NAME}."
                )
        return np.array(cells, dtype=np.str_)

    def id_column(self, name: str) -> NDArray[np.str_]:
        """A column of ids, each given once."""
        ids = self.name_column(name, "id")
        seen: dict[str, int] = {}
        for row, text in enumerate(ids.tolist()):
            if text in seen:
                raise DataError(
                    f"{self.place(row)}: the id '{text}' (column '{name}') was given before, in row "
                    f"{seen[text] + 1}. Give every sample a different id."
                )
            seen[text] = row
        return ids


def is_missing(cell: str) -> bool:
    """Whether a cell counts as empty."""
    return cell.lower() in MISSING


def read_csv(path: Path) -> TextTable:
    """Read a file of comma, semicolon or tab separated values."""
    text = decode(path, existing_file(path).read_bytes())
    delimiter = sniff(text)
    (header, *body), lines = checked_rows(path, text, delimiter)
    columns = {
        name: [cell.strip() for cell in cells] for name, cells in zip(header, zip(*body, strict=True), strict=True)
    }
    return TextTable(path, columns, lines[1:], decimal="," if delimiter == ";" else ".")


def checked_rows(path: Path, text: str, delimiter: str) -> tuple[list[list[str]], list[int]]:
    """The names of the columns and the rows below them, all of one length, and the line on which each ends."""
    rows, lines = read_rows(path, text, delimiter)
    if not rows:
        raise DataError(f"{path} is empty; a line with the names of the columns and at least one row are needed.")
    header, body = [name.strip() for name in rows[0]], rows[1:]
    check_header(path, header)
    if not body:
        raise DataError(f"{path} has a line with column names but no row below it.")
    for row, line in zip(body, lines[1:], strict=True):
        if len(row) != len(header):
            raise DataError(
                f"{path}, row {lines.index(line)} (line {line}): {len(row)} cells, but the first line names "
                f"{len(header)} columns. Put quotes around a cell that holds the separator '{shown(delimiter)}'."
            )
    return [header, *body], lines


def decode(path: Path, content: bytes) -> str:
    """UTF-8 text, with or without the byte order mark that Windows programs write first."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        line = content[: problem.start].count(b"\n") + 1
        raise DataError(f"{path}, line {line}: not UTF-8 text. Save the file again as UTF-8 CSV.") from None
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        raise DataError(f"{path}, line {line}: a zero byte, so this is not a text file. Save it again as UTF-8 CSV.")
    return text


def sniff(text: str) -> str:
    """The separator that the first line uses most; the comma if it uses none."""
    first = next((line for line in io.StringIO(text) if line.strip()), "")
    outside = "".join(first.split('"')[::2])
    return max(",;\t", key=outside.count)


def shown(delimiter: str) -> str:
    """A separator for an error message."""
    return "tab" if delimiter == "\t" else delimiter


def read_rows(path: Path, text: str, delimiter: str) -> tuple[list[list[str]], list[int]]:
    """The rows that are not blank, and the line on which each ends."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows, lines = [], []
    try:
        for row in reader:
            if row and (len(row) > 1 or row[0].strip()):
                rows.append(row)
                lines.append(reader.line_num)
    except csv.Error as problem:
        raise DataError(f"{path}, line {reader.line_num}: {problem}. Check the quotes near this line.") from None
    return rows, lines


def check_header(path: Path, header: list[str]) -> None:
    """Refuse a column without a name, and two columns with the same name."""
    for place, name in enumerate(header, start=1):
        if not name:
            raise DataError(
                f"{path}, line 1: column {place} has no name. Give it one; ignore= can then leave it out, or id= use "
                "it. (pandas writes a nameless first column unless asked for index=False.)"
            )
    twice = [name for name, count in Counter(header).items() if count > 1]
    if twice:
        raise DataError(f"{path}, line 1: two columns are named '{twice[0]}'. Rename one of them.")


def as_texts(values: Iterable[Any]) -> list[str]:
    """Typed values of one column as the cells of a CSV file; None is a missing cell."""
    return [cell_text(value) for value in values]


def cell_text(value: Any) -> str:
    """One typed value as a cell; a float keeps every digit."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value).strip()
