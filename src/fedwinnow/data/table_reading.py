"""Reading tables: columns of texts, and the line of every row for error messages; large files piece by piece."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwinnow.data.dates import Dates
from fedwinnow.data.pace import Pace
from fedwinnow.data.packed_cells import Packing, pack
from fedwinnow.data.source_files import existing_file
from fedwinnow.data.text_encoding import Asked, codec_of
from fedwinnow.errors import DataError, unknown

MISSING = frozenset({"", "na", "n/a", "nan", "null"})
PIECE = 20_000  # rows that are read at once
MEGABYTE = 1_000_000
LONGEST_NAME = 1000  # an id or a site; such a column is stored as wide as its longest text


@dataclass(frozen=True)
class TextTable:
    """Columns of texts, all of one length."""

    path: Path
    columns: Mapping[str, Sequence[str]]
    lines: Sequence[int] | NDArray[np.int64] = ()  # the line of each row, where the file has lines
    decimal: str = "."
    dates: Dates = "auto"  # how the file writes dates
    unreadable: dict[str, str] = field(default_factory=dict)  # columns that cannot become texts, with their type
    orders: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # categories that the file itself orders
    named: frozenset[str] = frozenset()  # columns that are categories, even where their values are numbers

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), []))

    @property
    def names(self) -> list[str]:
        return [*self.columns, *self.unreadable]

    def place(self, row: int) -> str:
        """Where a row is, for an error message; rows are counted from 1."""
        line = f" (line {self.lines[row]})" if len(self.lines) else ""
        return f"{self.path}, row {row + 1}{line}"

    def column(self, name: str) -> Sequence[str]:
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

    def without(self, texts: Collection[str]) -> TextTable:
        """The same table with empty cells in place of these texts, which mean that a value is missing."""
        gone = frozenset(texts)
        changed = {
            name: pack("" if cell in gone else cell for cell in cells)
            for name, cells in self.columns.items()
            if gone and not gone.isdisjoint(cells)
        }
        return replace(self, columns={**self.columns, **changed}) if changed else self

    def filled(self, name: str, purpose: str) -> Sequence[str]:
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


def read_csv(path: Path, encoding: Asked = "auto") -> TextTable:
    """Read a file of comma, semicolon or tab separated values, piece by piece; `.tsv` has tabs."""
    codec = codec_of(existing_file(path), encoding)
    packed: list[Packing] = []
    names: list[str] = []
    lines: list[NDArray[np.int64]] = []
    with path.open("rb") as raw, io.TextIOWrapper(raw, encoding=codec, newline="") as stream:
        delimiter = sniff(stream, path)
        stream.seek(0)
        pace = Pace(-(-path.stat().st_size // MEGABYTE), "MB", "read")
        for piece in pieces_of(rows_of(path, stream, delimiter)):
            if not names:
                names, piece = piece[0][0], piece[1:]
                packed = [Packing() for _ in names]
            lines.append(np.fromiter((line for _, line in piece), np.int64, len(piece)))
            for packing, cells in zip(packed, zip(*(row for row, _ in piece), strict=True), strict=False):
                packing.add([cell.strip() for cell in cells])
            pace.reach(raw.tell() // MEGABYTE)
    columns = {name: packing.packed() for name, packing in zip(names, packed, strict=True)}
    return TextTable(path, columns, np.concatenate(lines), decimal="," if delimiter in ";\t" else ".")


def pieces_of(rows: Iterable[tuple[list[str], int]]) -> Iterator[list[tuple[list[str], int]]]:
    """The rows in pieces, so that the cells of a large file are never all Python texts at once."""
    remaining = iter(rows)
    while piece := list(islice(remaining, PIECE)):
        yield piece


def checked_rows(path: Path, text: str, delimiter: str) -> list[list[str]]:
    """The names of the columns and the rows below them, all of one length."""
    return [row for row, _ in rows_of(path, io.StringIO(text, newline=""), delimiter)]


def decode(path: Path, encoding: Asked = "auto") -> tuple[str, str]:
    """The text of a file without its byte order mark, and the name that Python has for its encoding."""
    codec = codec_of(existing_file(path), encoding)
    return path.read_bytes().decode(codec), codec


def sniff(lines: Iterable[str], path: Path) -> str:
    """The separator that the first line uses most; the comma if it uses none. In a .tsv file a tab is enough."""
    first = next((line for line in lines if line.strip()), "")
    outside = "".join(first.split('"')[::2])
    if path.suffix.lower() == ".tsv" and "\t" in outside:
        return "\t"
    return max(",;\t", key=outside.count)


def shown(delimiter: str) -> str:
    """A separator for an error message."""
    return "tab" if delimiter == "\t" else delimiter


def rows_of(path: Path, stream: Iterable[str], delimiter: str) -> Iterator[tuple[list[str], int]]:
    """The names of the columns, then the rows that are not blank, each with the line on which it ends."""
    reader = csv.reader(stream, delimiter=delimiter, strict=True)
    number = width = 0  # rows below the names so far; columns
    try:
        for row in reader:
            if not row or (len(row) == 1 and not row[0].strip()):
                continue
            if not width:
                header = [name.strip() for name in row]
                check_header(path, header)
                width = len(header)
                yield header, reader.line_num
                continue
            number += 1
            if len(row) != width:
                raise DataError(
                    f"{path}, row {number} (line {reader.line_num}): {len(row)} cells, but the first line names "
                    f"{width} columns. Put quotes around a cell that holds the separator '{shown(delimiter)}'."
                )
            yield row, reader.line_num
    except csv.Error as problem:
        raise DataError(f"{path}, line {reader.line_num}: {problem}. Check the quotes near this line.") from None
    if not width:
        raise DataError(f"{path} is empty; a line with the names of the columns and at least one row are needed.")
    if not number:
        raise DataError(f"{path} has a line with column names but no row below it.")


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
