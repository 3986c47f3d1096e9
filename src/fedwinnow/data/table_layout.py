"""Where the table stands in a file: its separator, the line with the names, what is above it and what is below."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar

from fedwinnow.errors import DataError

One = TypeVar("One")
SEPARATORS = ",;\t"
STATED = re.compile(r'"?sep=(.)"?\s*', re.IGNORECASE)  # a first line by which Excel knows the separator
LOOKED_AT = 60  # lines at the beginning among which the names are looked for
MOST_NOTES = 20  # lines below a table that an error may propose to leave out
TOTALS = re.compile(
    r"(?:grand |sub)?(?:total|totals|sum|summe|gesamt|gesamtsumme|gesamtergebnis|insgesamt|zwischensumme|mittelwert|"
    r"durchschnitt|average|somme|moyenne|totale|totaal|suma|summa|totalt|média|promedio)"
    r"\s*[:=]?\s*[\d.,' ]*",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Layout:
    """What the user says of where the table is."""

    header: int | None = None  # the line with the names of the columns; None: the first that is not empty
    footer: int | None = None  # lines below the table; None: none, and a line of totals is refused


AS_FOUND = Layout()


@dataclass(frozen=True)
class Start:
    """Where a table begins in a text file."""

    delimiter: str
    above: int  # lines above the names


def start_of(lines: Iterable[str], path: Path, layout: Layout = AS_FOUND) -> Start:
    """The separator that the line with the names uses most, unless the file states it, and how many lines are above."""
    stated, number = "", 0
    for number, line in enumerate(lines, start=1):
        if not stated and layout.header != number and (found := STATED.fullmatch(line)):
            stated = found[1]
        elif number == layout.header and not line.strip():
            break
        elif number == layout.header or (layout.header is None and line.strip()):
            return Start(stated or sniff(line, path), number - 1)
    if layout.header is not None:
        what = "is empty" if number == layout.header else f"is beyond the end: the file has {number}"
        raise DataError(f"{path}: line {layout.header} (header={layout.header}) {what}. Name the line with the names.")
    return Start(stated or ",", 0)


def sniff(line: str, path: Path) -> str:
    """The separator that a line uses most; the comma if it uses none. In a .tsv file a tab is enough."""
    outside = "".join(line.split('"')[::2])
    if path.suffix.lower() == ".tsv" and "\t" in outside:
        return "\t"
    return max(SEPARATORS, key=outside.count)


def shown(delimiter: str) -> str:
    """A separator for an error message."""
    return "tab" if delimiter == "\t" else delimiter


def rows_of(
    path: Path,
    stream: Iterable[str],
    start: Start,
    layout: Layout = AS_FOUND,
    hint: Callable[[], str] = str,
) -> Iterator[tuple[list[str], int]]:
    """The names of the columns, then the rows that are not empty, each with the line on which it ends.

    `stream` begins with the line of the names; `hint` says where the names may stand instead.
    """
    reader = csv.reader(stream, delimiter=start.delimiter, strict=True)
    records = ((row, start.above + reader.line_num) for row in reader if any(map(str.strip, row)))
    number = width = below = 0  # rows so far; columns; the line of the names
    try:
        for row, line in without_last(records, layout.footer or 0):
            if not width:
                header = [name.strip() for name in row]
                width, below = len(header), line
                refuse_doubles(path, header, line)
                yield header, line
                continue
            number += 1
            if len(row) > width and not any(map(str.strip, row[width:])):
                row = row[:width]
            if len(row) != width:
                notes = notes_below(records, row, width, layout)
                raise DataError(
                    f"{path}, row {number} (line {line}): {len(row)} cells, but line {below} names {width} columns. "
                    + (
                        hint()
                        or notes
                        or f"Put quotes around a cell that holds the separator '{shown(start.delimiter)}'."
                    )
                )
            yield row, line
    except csv.Error as problem:
        raise DataError(
            f"{path}, line {start.above + reader.line_num}: {problem}. Check the quotes near this line."
        ) from None
    if not width:
        raise DataError(f"{path} is empty; a line with the names of the columns and at least one row are needed.")
    if not number:
        raise DataError(f"{path} has a line with column names but no row below it.")


def without_last(records: Iterator[One], count: int) -> Iterator[One]:
    """All but the last records."""
    if not count:
        yield from records
        return
    held = list(islice(records, count))
    for record in records:
        held.append(record)
        yield held.pop(0)


def notes_below(records: Iterator[tuple[list[str], int]], row: Sequence[str], width: int, layout: Layout) -> str:
    """What to do about lines at the end of a file that are too short to be rows; empty where they are not that."""
    if layout.footer is not None or len(row) > width:
        return ""
    rest = list(islice(records, MOST_NOTES + 1))
    if len(rest) > MOST_NOTES or any(len(other) >= width for other, _ in rest):
        return ""
    count = len(rest) + 1
    if count == 1 and len(row) > 1:  # a row that is cut off
        return f"If it is no row but a note below the table, write footer=1; else fill its {width} cells."
    lines = "this line is" if count == 1 else f"the last {count} lines are"
    return f"If {lines} a note below the table, remove {'it' if count == 1 else 'them'} or write footer={count}."


def refuse_doubles(path: Path, header: Sequence[str], line: int) -> None:
    """Refuse columns with the same name."""
    twice = [f"'{name}'" for name, count in Counter(header).items() if count > 1 and name]
    if twice:
        several = "" if len(twice) == 1 else f" (so are {', '.join(twice[1:])})"
        raise DataError(f"{path}, line {line}: two columns are named {twice[0]}{several}. Rename one of them.")


def refuse_nameless(path: Path, filled: Iterable[int], line: int, hint: str) -> None:
    """Refuse columns without a name that have values, by their places."""
    filled = sorted(filled)
    places = ", ".join(str(place + 1) for place in filled)
    named = f"column {places} has" if len(filled) == 1 else f"columns {places} have"
    raise DataError(
        f"{path}, line {line}: {named} no name, but values. "
        + (
            hint
            or "Give each a name; ignore= can then leave it out, or id= use it. (pandas writes a nameless first column "
            "unless asked for index=False.)"
        )
    )


def refuse_totals(columns: Mapping[str, Sequence[str]], place: str) -> None:
    """Refuse a last row that has the word for a total where no other row has it."""
    if len(next(iter(columns.values()), [])) < 3:
        return
    for name, cells in columns.items():
        last = cells[-1]
        if TOTALS.fullmatch(last) and Counter(cells)[last] == 1:
            raise DataError(
                f"{place}: column '{name}' has '{last:.60}', so this last line looks like one of totals. Remove it, or "
                "write footer=1 to leave it out; footer=0 says that it is a row."
            )


# --- a guess, for error messages -----------------------------------------------------------------------------------


def hint_for(lines: Iterable[str]) -> str:
    """What an error says of the line in which the names probably stand; empty where they stand in the first."""
    beginning = list(islice(lines, LOOKED_AT))
    found: list[tuple[int, int, int]] = []  # how many lines are as long as most, how long, the first as long as that
    for delimiter in SEPARATORS:
        reader, before = csv.reader(beginning, delimiter=delimiter), 0
        records: list[tuple[int, int]] = []
        try:
            for row in reader:
                records.append((before + 1, filled_to(row)))
                before = reader.line_num
        except csv.Error:
            pass
        widths = Counter(width for _, width in records if width > 1)
        if widths:
            usual, count = max(widths.items(), key=lambda pair: (pair[1], pair[0]))
            found.append((count, usual, next(line for line, width in records if width >= usual)))
    best = max((one for one in found if one[0] > 1), default=None)
    return hint_of_line(1 if best is None else best[2], beginning)


def hint_of_line(line: int, above: Sequence[object]) -> str:
    """The sentence for a line below the first."""
    if line <= 1 or not any(str(one).strip() for one in above[: line - 1]):
        return ""
    return f"If the names of the columns stand in line {line}, remove the lines above it or write header={line}."


def filled_to(row: Sequence[object]) -> int:
    """How many cells a row has, without the empty ones at its end."""
    width = len(row)
    while width and (row[width - 1] is None or not str(row[width - 1]).strip()):
        width -= 1
    return width
