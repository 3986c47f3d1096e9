"""Corrected labels in a CSV or Parquet file: the same file with one column changed and two added."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedwinnow.auditing.applying.changes import Change
from fedwinnow.data.labels import class_names_of, class_numbers
from fedwinnow.data.sources.csv import Csv
from fedwinnow.data.sources.parquet import read_arrow
from fedwinnow.data.sources.table_source import TableSource
from fedwinnow.data.table_layout import AS_FOUND, SEPARATORS, Layout, rows_of, start_of
from fedwinnow.data.table_reading import cell_text, decode
from fedwinnow.data.text_encoding import Asked
from fedwinnow.errors import DataError

GIVEN, SOURCE = "label_given", "label_source"
SOURCES = ("given", "review", "audit")  # what stands in the column SOURCE

Row = list[str]


def check_columns(path: Path, source: TableSource, names: Sequence[str]) -> None:
    """Refuse a file without the columns that the audit read."""
    for name in (source.label, source.id):
        if name is not None and name not in names:
            raise DataError(f"{path} has no column '{name}' any more; it has {', '.join(names)}.")


def places_by_id(source: TableSource, cells: Mapping[str, Sequence[str]], count: int) -> dict[str, int]:
    """The row of each id."""
    ids = [str(number) for number in range(1, count + 1)] if source.id is None else cells[source.id]
    return {name.strip(): place for place, name in enumerate(ids)}


def check_unchanged(path: Path, place: int, now: str, change: Change, names: Sequence[str]) -> None:
    """Refuse a row whose label is not the one that was judged."""
    known = class_numbers([now.strip(), change.given], names)
    if known[0] != known[1] or known[0] < 0:
        raise DataError(
            f"{path}, row {place + 1}: the label is '{now}', but the audit judged '{change.given}'. The file has "
            "changed since; audit it again."
        )


def written_as(labels: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """How the file writes each class in most rows: 1.0 stays 1.0 where the class is 1."""
    found: dict[str, Counter[str]] = {}
    for text, number in zip(labels, class_numbers([text.strip() for text in labels], names), strict=True):
        if number >= 0:
            found.setdefault(names[number], Counter())[text] += 1
    return {name: found[name].most_common(1)[0][0] if name in found else name for name in names}


def places_of_changes(
    path: Path, places: dict[str, int], changes: dict[str, Change], labels: Sequence[str], names: Sequence[str]
) -> dict[int, Change]:
    """The rows to change, each checked."""
    found = {}
    for name, change in changes.items():
        if name not in places:
            raise DataError(f"{path} has no row with the id '{name}' any more. Audit the file again.")
        check_unchanged(path, places[name], labels[places[name]], change, names)
        found[places[name]] = change
    return found


def names_of(labels: Sequence[str], changes: dict[str, Change]) -> tuple[str, ...]:
    """The classes that occur."""
    mentioned = {word for change in changes.values() for word in (change.given, change.label)}
    return class_names_of({*(text.strip() for text in labels), *mentioned})


# --- CSV -----------------------------------------------------------------------------------------------------------


@dataclass
class TextFile:
    """A text file with a table: its rows and what stands around them."""

    above: str  # the lines before the names of the columns, as they are
    rows: list[Row]  # the names first
    below: list[Row]  # lines at the end that are no rows
    delimiter: str
    end: str  # of a line
    codec: str

    def content(self, path: Path) -> bytes:
        """The file again, in its own dialect and encoding."""
        stream = io.StringIO()
        stream.write(self.above)
        csv.writer(stream, delimiter=self.delimiter, lineterminator=self.end).writerows([*self.rows, *self.below])
        try:
            return stream.getvalue().encode(self.codec)
        except UnicodeEncodeError as problem:
            raise DataError(
                f"{path}: the letter '{problem.object[problem.start]}' of a label cannot be written in the encoding of "
                f"the file ({self.codec}). Save the file as UTF-8 CSV first."
            ) from None


def read_text_file(path: Path, encoding: Asked = "auto", layout: Layout = AS_FOUND) -> TextFile:
    """A text file whole."""
    text, codec = decode(path, encoding)
    lines = text_lines(text)
    start = start_of(lines, path, layout)
    notes: list[Row] = []
    if layout.footer:
        records = csv.reader(lines[start.above :], delimiter=start.delimiter)
        notes = [row for row in records if any(map(str.strip, row))][-layout.footer :]
    rows = [row for row, _ in rows_of(path, iter(lines[start.above :]), start, layout)]
    return TextFile("".join(lines[: start.above]), rows, notes, start.delimiter, end_of_lines(text), codec)


def text_lines(text: str) -> list[str]:
    """The lines of a text, each with its end."""
    return list(io.StringIO(text, newline=""))


def end_of_lines(text: str) -> str:
    """How the first line ends."""
    return "\r\n" if "\r\n" in text.partition("\n")[0] + "\n" else "\n"


def corrected_csv(path: Path, source: TableSource, changes: dict[str, Change]) -> bytes:
    """The file with corrected labels."""
    assert isinstance(source, Csv)
    file = read_text_file(path, source.encoding, source.layout)
    header, *body = file.rows
    check_columns(path, source, header)
    column = header.index(source.label)
    labels = [row[column] for row in body]
    cells = {name: [row[place] for row in body] for place, name in enumerate(header)}
    names = names_of(labels, changes)
    wanted = places_of_changes(path, places_by_id(source, cells, len(body)), changes, labels, names)
    spelling = written_as(labels, names)
    if GIVEN not in header:  # otherwise it was corrected before, and the first labels are in that column
        header += [GIVEN, SOURCE]
        body = [[*row, row[column], "given"] for row in body]
    place_of_source = header.index(SOURCE)
    for place, change in wanted.items():
        body[place][column] = spelling[change.label]
        body[place][place_of_source] = change.source
    return replace(file, rows=[header, *body]).content(path)


def reversed_csv(path: Path, label: str) -> bytes:
    """The file with its first labels, without the two added columns."""
    text, codec = decode(path)
    lines, wanted = text_lines(text), {GIVEN, SOURCE, label}
    for delimiter in SEPARATORS:
        reader, above = csv.reader(lines, delimiter=delimiter), 0
        for header in reader:
            names = [name.strip() for name in header]
            if wanted <= set(names):
                break
            above = reader.line_num
        else:
            continue
        break
    else:
        raise DataError(f"{path} has no columns {label}, {GIVEN} and {SOURCE}, so nothing can be undone in it.")
    column, given = names.index(label), names.index(GIVEN)
    dropped = {given, names.index(SOURCE)}
    rows = [header]
    for row in reader:
        if len(row) == len(header) and row[names.index(SOURCE)] in SOURCES:  # anything else is a note below the table
            row[column] = row[given]
            row = [cell for place, cell in enumerate(row) if place not in dropped]
        rows.append(row)
    rows[0] = [cell for place, cell in enumerate(header) if place not in dropped]
    return TextFile("".join(lines[:above]), rows, [], delimiter, end_of_lines(text), codec).content(path)


# --- Parquet -------------------------------------------------------------------------------------------------------


def corrected_parquet(path: Path, source: TableSource, changes: dict[str, Change]) -> bytes:
    """The file with corrected labels; the column keeps its type."""
    table = read_arrow(path)
    import pyarrow

    check_columns(path, source, table.column_names)
    values = table.column(source.label).to_pylist()
    labels = [cell_text(value) for value in values]
    ids = {} if source.id is None else {source.id: [cell_text(value) for value in table.column(source.id).to_pylist()]}
    names = names_of(labels, changes)
    wanted = places_of_changes(path, places_by_id(source, ids, len(values)), changes, labels, names)
    spelling = written_as(labels, names)
    known, kind = dict(zip(labels, values, strict=True)), table.column(source.label).type
    again = GIVEN in table.column_names
    sources = table.column(SOURCE).to_pylist() if again else ["given"] * len(values)
    corrected = list(values)
    for place, change in wanted.items():
        if spelling[change.label] not in known:  # a class that only other sites have
            known[spelling[change.label]] = pyarrow.scalar(change.label).cast(kind).as_py()
        corrected[place], sources[place] = known[spelling[change.label]], change.source
    if not again:
        table = table.append_column(GIVEN, table.column(source.label))
    table = table.set_column(table.column_names.index(source.label), source.label, pyarrow.array(corrected, kind))
    texts = pyarrow.array(sources, pyarrow.string())
    table = (
        table.set_column(table.column_names.index(SOURCE), SOURCE, texts)
        if again
        else table.append_column(SOURCE, texts)
    )
    return parquet_bytes(table)


def reversed_parquet(path: Path, label: str) -> bytes:
    """The file with its first labels, without the two added columns."""
    table = read_arrow(path)
    if not {GIVEN, SOURCE, label} <= set(table.column_names):
        raise DataError(f"{path} has no columns {label}, {GIVEN} and {SOURCE}, so nothing can be undone in it.")
    table = table.set_column(table.column_names.index(label), label, table.column(GIVEN))
    return parquet_bytes(table.drop_columns([GIVEN, SOURCE]))


def parquet_bytes(table: Any) -> bytes:
    """A table as the content of a file."""
    from pyarrow import parquet

    stream = io.BytesIO()
    parquet.write_table(table, stream)
    return stream.getvalue()
