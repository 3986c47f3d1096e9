"""Reading tables: columns of texts, and the line of every row for error messages; large files piece by piece."""

from __future__ import annotations

import io
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedwinnow.data.dates import Dates
from fedwinnow.data.number_forms import Decimal, Usual, decimal_in
from fedwinnow.data.pace import Pace
from fedwinnow.data.packed_cells import PackedCells, Packing, pack
from fedwinnow.data.source_files import existing_file
from fedwinnow.data.table_layout import (
    AS_FOUND,
    Layout,
    hint_for,
    refuse_nameless,
    refuse_totals,
    rows_of,
    start_of,
)
from fedwinnow.data.text_encoding import Asked, codec_of
from fedwinnow.errors import DataError, unknown

MISSING = frozenset({"", "na", "n/a", "nan", "null"})
PIECE = 20_000  # rows that are read at once
MEGABYTE = 1_000_000
SHORTENED = re.compile(r"[+-]?\d(?:[.,]\d+)?[eE]\+\d{1,3}")  # 1.23E+10
ROUNDED = re.compile(r"[1-9]\d{14,}0")  # spreadsheets keep 15 digits
LONGEST_NAME = 1000  # an id or a site; such a column is stored as wide as its longest text


@dataclass(frozen=True)
class TextTable:
    """Columns of texts, all of one length."""

    path: Path
    columns: Mapping[str, Sequence[str]]
    lines: Sequence[int] | NDArray[np.int64] = ()  # the line of each row, where the file has lines
    decimal: Usual = "."  # the decimal sign besides the point
    asked_decimal: Decimal = "auto"  # what the user says of it
    dates: Dates = "auto"  # how the file writes dates
    hint: str = ""  # where the names of the columns may stand instead
    unreadable: dict[str, str] = field(default_factory=dict)  # columns that cannot become texts, with their type
    orders: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # categories that the file itself orders
    named: frozenset[str] = frozenset()  # columns that are categories, even where their values are numbers

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), []))

    @property
    def names(self) -> list[str]:
        return [*self.columns, *self.unreadable]

    @cached_property
    def decimal_of_all(self) -> Literal[".", ",", ""]:
        """The decimal sign of the columns whose numbers can be read in one way only; empty where they do not tell."""
        packed = (pack(cells) for cells in self.columns.values())
        return decimal_in(cells.content for cells in packed if isinstance(cells, PackedCells))

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
                f"name columns.{self.hint}"
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
        """A column of ids, groups or sites as an array."""
        cells = self.filled(name, purpose)
        self.refuse_shortened(cells, name, purpose)
        for row, cell in enumerate(cells):
            if len(cell) > LONGEST_NAME:
                raise DataError(
                    f"{self.place(row)}: the {purpose} (column '{name}') has {len(cell)} characters; "
                    f"allowed: at most {LONGEST_NAME}."
                )
        return np.array(cells, dtype=np.str_)

    def refuse_shortened(self, cells: Sequence[str], name: str, purpose: str) -> None:
        """Refuse long numbers of which a spreadsheet has kept the first digits only."""
        row = next((row for row, cell in enumerate(cells) if SHORTENED.fullmatch(cell)), None)
        if row is None:
            rounded = {cell for cell in cells if ROUNDED.fullmatch(cell)}
            if len(rounded) < 3 or not all(ROUNDED.fullmatch(cell) for cell in cells):
                return
            row = 0
        raise DataError(
            f"{self.place(row)}: the {purpose} (column '{name}') is '{cells[row]:.60}'. A spreadsheet has cut the "
            "number short, so that different ones may look the same. Export it again with this column as text."
        )

    def id_column(self, name: str) -> NDArray[np.str_]:
        """A column of ids, each given once."""
        ids = self.name_column(name, "id")
        seen: dict[str, int] = {}
        for row, text in enumerate(ids.tolist()):
            if text in seen:
                raise DataError(
                    f"{self.place(row)}: the id '{text}' (column '{name}') was given before, in row "
                    f"{seen[text] + 1}. Give every sample a different id; if it is that of a patient with "
                    f"several rows, write group={name} in place of id={name}."
                )
            seen[text] = row
        return ids


def is_missing(cell: str) -> bool:
    """Whether a cell counts as empty."""
    return cell.lower() in MISSING


def read_csv(path: Path, encoding: Asked = "auto", layout: Layout = AS_FOUND) -> TextTable:
    """Read a file of comma, semicolon or tab separated values, piece by piece; `.tsv` has tabs."""
    codec = codec_of(existing_file(path), encoding)
    columns: dict[int, Packing] = {}
    names: list[str] = []
    lines: list[NDArray[np.int64]] = []

    def hint() -> str:
        if layout.header is not None:
            return ""
        with path.open(encoding=codec, newline="") as again:
            return hint_for(again)

    with path.open("rb") as raw, io.TextIOWrapper(raw, encoding=codec, newline="") as stream:
        start = start_of(stream, path, layout)
        stream.seek(0)
        pace = Pace(-(-path.stat().st_size // MEGABYTE), "MB", "read")
        below = islice(stream, start.above, None)
        for piece in pieces_of(rows_of(path, below, start, layout, hint)):
            if not names:
                (names, line), piece = piece[0], piece[1:]
                columns = {place: Packing() for place, name in enumerate(names) if name}
            lines.append(np.fromiter((line for _, line in piece), np.int64, len(piece)))
            strange = set()
            for place, cells in enumerate(zip(*(row for row, _ in piece), strict=True)):
                stripped = [cell.strip() for cell in cells]
                if place in columns:
                    columns[place].add(stripped)
                elif any(stripped):
                    strange.add(place)
            if strange:
                refuse_nameless(path, strange, line, hint())
            pace.reach(raw.tell() // MEGABYTE)
    found = {names[place]: packing.packed() for place, packing in columns.items()}
    usual: dict[str, Usual] = {";": ",", "\t": "either"}
    where = f" {hint()}".rstrip() if len(found) == 1 else ""
    table = TextTable(path, found, np.concatenate(lines), decimal=usual.get(start.delimiter, "."), hint=where)
    if layout.footer is None:
        refuse_totals(found, table.place(len(table) - 1))
    return table


def pieces_of(rows: Iterable[tuple[list[str], int]]) -> Iterator[list[tuple[list[str], int]]]:
    """The rows in pieces, so that the cells of a large file are never all Python texts at once."""
    remaining = iter(rows)
    while piece := list(islice(remaining, PIECE)):
        yield piece


def decode(path: Path, encoding: Asked = "auto") -> tuple[str, str]:
    """The text of a file without its byte order mark, and the name that Python has for its encoding."""
    codec = codec_of(existing_file(path), encoding)
    return path.read_bytes().decode(codec), codec


def as_texts(values: Iterable[Any]) -> list[str]:
    """Typed values of one column as the cells of a CSV file; None is a missing cell."""
    return [cell_text(value) for value in values]


def cell_text(value: Any) -> str:
    """One typed value as a cell; a float keeps every digit."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value).strip()
