"""Data sets from data frames of a program."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from fedwinnow.data.content_hash import Contents
from fedwinnow.data.dataset import Dataset
from fedwinnow.data.frame_cells import is_frame, table_of
from fedwinnow.data.sources.table_source import TableSource
from fedwinnow.data.table_reading import TextTable
from fedwinnow.errors import WORDING, DataError, FedwinnowError, UsageError, unknown
from fedwinnow.options import option

ROLES = ("label", "id", "site", "group", "true")  # of columns; a program may give values instead of a name
ADVICE = re.compile(r"\b(?:ignore|keep|notes|id|max_categories|classes|missing_values|ordered)=")
WHOSE = "In Python these are options of fedwinnow.data.data_frames.from_frame, whose result is given as the data."


@dataclass(frozen=True)
class Frame(TableSource):
    """Tables of a program, read as the CSV files would be that they can be saved as."""

    name: ClassVar[str] = "frame"
    tables: Any = option((), "The table, and after it one with the test rows if there is one.")

    def read_file(self, path: Path) -> TextTable:
        table: TextTable = self.tables[path == self.test_path]
        return table

    def hash_of(self, paths: list[Path]) -> str:
        return ""

    def contents_of(self, tables: list[TextTable]) -> Contents:
        digest = hashlib.sha256()
        for table in tables:
            for name, cells in table.columns.items():
                said = (*table.orders.get(name, ()), *(("named",) if name in table.named else ()))
                for text in (name, *cells, *said):
                    digest.update(f"{len(text)}:{text}".encode(errors="surrogatepass"))
        return Contents("the data frame", digest.hexdigest())

    def load(self) -> Dataset:
        with advice_for_programs():
            return super().load()


def from_frame(frame: Any, test: Any = None, /, **options: Any) -> Dataset:
    """A data set from a data frame; `test` is a second one with the test rows.

    `label`, `site`, `group`, `id` and `true` name columns, or have a value per row; all other columns are features. The
    other options are those of a CSV file: ignore="room|bed", keep=, notes=, ordered=, missing_values= and so on.
    """
    return source_of(frame, test, **options).load()


def source_of(frame: Any, test: Any = None, /, **options: Any) -> Frame:
    """The same, not yet read."""
    tables = [table_of(frame, "the data frame")]
    if test is not None:
        tables.append(table_of(test, "the data frame of the test"))
    ready: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    allowed = [name for name in Frame.__dataclass_fields__ if name not in ("path", "test_path", "tables", "lazy")]
    for name in ready:
        if name not in allowed:
            raise unknown("option of a data frame:", name, allowed)
    for role in ROLES:
        if role in ready and not isinstance(ready[role], str):
            values, ready[role] = ready[role], f"{role} that was given"
            tables[0] = with_column(tables[0], ready[role], role, values)
    if "label" not in ready:
        names = ", ".join(tables[0].names)
        raise UsageError(f"label= is missing, the column of the labels; the columns are: {names}.")
    for role in ROLES:
        if role in ready and ready[role] not in tables[0].names:
            raise DataError(f"the data frame: {unknown('column', ready[role], tables[0].names)}")
    beside = None if test is None else Path("the data frame of the test")
    return Frame(path=Path("frame"), test_path=beside, tables=tuple(tables), **ready)


def with_column(table: TextTable, name: str, role: str, values: Any) -> TextTable:
    """The same table with one more column: a value per row, for a role."""
    if is_frame(values):
        if len(list(values.columns)) != 1:
            raise DataError(f"{role}= is a data frame with {len(list(values.columns))} columns; allowed: one column.")
        values = next(column for _, column in values.items())
    one = table_of({name: values}, f"{role}=") if len(values) else None
    if one is None or name not in one.columns or len(one) != len(table):
        found = "nothing" if one is None else one.unreadable.get(name) or f"{len(one)} values"
        raise DataError(f"the data frame has {len(table)} rows and {role}= has {found}; allowed: a value for each row.")
    return dataclasses.replace(table, columns={**table.columns, **one.columns})


@contextmanager
def advice_for_programs() -> Iterator[None]:
    """Messages that advise an option of a table say where a program gives it."""
    before = WORDING.get()

    def told(text: str) -> str:
        text = text if before is None else before(text)
        return f"{text.rstrip('.')}. {WHOSE}" if ADVICE.search(text) else text

    here = WORDING.set(told)
    try:
        yield
    except FedwinnowError as problem:
        if ADVICE.search(str(problem)):
            problem.args = (f"{str(problem).rstrip('.')}. {WHOSE}",)
        raise
    finally:
        WORDING.reset(here)
