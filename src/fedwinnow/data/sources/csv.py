"""Tables in text files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from fedwinnow.data.sources.table_source import TableSource
from fedwinnow.data.table_layout import Layout
from fedwinnow.data.table_reading import TextTable, read_csv
from fedwinnow.data.text_encoding import Asked
from fedwinnow.options import option


@dataclass(frozen=True)
class Csv(TableSource):
    """A CSV or TSV file: comma, semicolon or tab separated, with the names of the columns in the first line that is not
    empty.

    Columns of numbers are standardised, columns of texts become one column per value, dates become numbers, missing
    values are marked, and columns that look like ids are left out.
    """

    name: ClassVar[str] = "csv"

    encoding: Asked = option("auto", "How letters are stored; auto finds out and says so where it is not UTF-8.")
    header: int | None = option(
        None, "The line with the names of the columns; lines above it are left out.", at_least=1
    )
    footer: int | None = option(
        None,
        "How many lines at the end are no rows (totals, notes); without it a line of totals is refused.",
        at_least=0,
        at_most=1000,
    )

    @property
    def layout(self) -> Layout:
        """Where the table is in the file."""
        return Layout(self.header, self.footer)

    def read_file(self, path: Path) -> TextTable:
        return read_csv(path, self.encoding, self.layout)
