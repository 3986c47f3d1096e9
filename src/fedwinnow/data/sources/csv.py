"""Tables in text files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from fedwinnow.data.sources.table_source import TableSource
from fedwinnow.data.table_reading import TextTable, read_csv


@dataclass(frozen=True)
class Csv(TableSource):
    """A CSV file: comma, semicolon or tab separated, UTF-8, with the names of the columns in the first line.

    Columns of numbers are standardised, columns of texts become one column per value, missing values are marked.
    """

    name: ClassVar[str] = "csv"

    def read(self, path: Path) -> TextTable:
        return read_csv(path)
