"""Corrected labels in a CSV or Parquet file: the same file with one column changed and two added."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedwinnow.auditing.applying.changes import Change
from fedwinnow.data.labels import class_names_of, class_numbers
from fedwinnow.data.sources.csv import Csv
from fedwinnow.data.sources.parquet import read_arrow
from fedwinnow.data.sources.table_source import TableSource
from fedwinnow.data.table_reading import cell_text, checked_rows, decode, sniff
from fedwinnow.data.text_encoding import Asked
from fedwinnow.errors import DataError

GIVEN, SOURCE = "label_given", "label_source"

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


def read_csv_rows(path: Path, encoding: Asked = "auto") -> tuple[list[Row], dict[str, Any]]:
    """All rows, the header first, and how the file is written."""
    text, codec = decode(path, encoding)
    dialect: dict[str, Any] = {
        "delimiter": sniff(io.StringIO(text), path),
        "lineterminator": "\r\n" if "\r\n" in text.partition("\n")[0] + "\n" else "\n",
        "codec": codec,
    }
    return checked_rows(path, text, dialect["delimiter"]), dialect


def csv_text(path: Path, rows: Sequence[Row], dialect: dict[str, Any]) -> bytes:
    """The rows in the dialect and the encoding of the file."""
    stream = io.StringIO()
    csv.writer(stream, delimiter=dialect["delimiter"], lineterminator=dialect["lineterminator"]).writerows(rows)
    try:
        return stream.getvalue().encode(dialect["codec"])
    except UnicodeEncodeError as problem:
        raise DataError(
            f"{path}: the letter '{problem.object[problem.start]}' of a label cannot be written in the encoding of the "
            f"file ({dialect['codec']}). Save the file as UTF-8 CSV first."
        ) from None


def corrected_csv(path: Path, source: TableSource, changes: dict[str, Change]) -> bytes:
    """The file with corrected labels."""
    encoding: Asked = source.encoding if isinstance(source, Csv) else "auto"
    (header, *body), dialect = read_csv_rows(path, encoding)
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
    return csv_text(path, [header, *body], dialect)


def reversed_csv(path: Path, label: str) -> bytes:
    """The file with its first labels, without the two added columns."""
    (header, *body), dialect = read_csv_rows(path)
    if GIVEN not in header or SOURCE not in header or label not in header:
        raise DataError(f"{path} has no columns {label}, {GIVEN} and {SOURCE}, so nothing can be undone in it.")
    column, given = header.index(label), header.index(GIVEN)
    dropped = {given, header.index(SOURCE)}
    rows = [header]
    for row in body:
        row[column] = row[given]
        rows.append(row)
    return csv_text(path, [[cell for place, cell in enumerate(row) if place not in dropped] for row in rows], dialect)


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
