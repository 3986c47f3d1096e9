"""Tables in text files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from fedwinnow.data.sources.table_source import TableSource
from fedwinnow.data.table_reading import TextTable, read_csv
from fedwinnow.options import option


@dataclass(frozen=True)
class Csv(TableSource):
    """A CSV or TSV file: comma, semicolon or tab separated, with the names of the columns in the first line.

    Columns of numbers are standardised, columns of texts become one column per value, dates become numbers, missing
    values are marked, and columns that look like ids are left out.
    """

    name: ClassVar[str] = "csv"

    encoding: Literal["auto", "utf-8", "utf-16", "latin-1"] = option(
        "auto", "How letters are stored; auto finds out and says so where it is not UTF-8."
    )

    def read_file(self, path: Path) -> TextTable:
        return read_csv(path, self.encoding)
