"""Tables in Parquet files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from fedwinnow.data.source_files import existing_file
from fedwinnow.data.sources.table_source import TableSource
from fedwinnow.data.table_reading import TextTable, as_texts
from fedwinnow.errors import DataError, missing_extra


@dataclass(frozen=True)
class Parquet(TableSource):
    """A Parquet file; its columns are used like those of a CSV file (needs the extra `parquet`)."""

    name: ClassVar[str] = "parquet"

    def read(self, path: Path) -> TextTable:
        content = read_arrow(path)
        from pyarrow import types

        if content.num_rows == 0 or content.num_columns == 0:
            raise DataError(f"{path} has no rows.")
        if len(set(content.column_names)) < content.num_columns:
            raise DataError(f"{path}: two columns have the same name. Rename one of them.")
        columns, unreadable = {}, {}
        for name, column in zip(content.column_names, content.columns, strict=True):
            if types.is_nested(column.type) or types.is_binary(column.type) or types.is_large_binary(column.type):
                unreadable[name] = f"values of the type {column.type}"
            else:
                columns[name] = as_texts(column.to_pylist())
        return TextTable(path, columns, unreadable=unreadable)


def read_arrow(path: Path) -> Any:
    """The file as a pyarrow table."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise missing_extra("parquet", "reading Parquet files") from None
    try:
        return parquet.ParquetFile(existing_file(path)).read()
    except (pyarrow.ArrowException, OSError, ValueError) as problem:
        raise DataError(f"{path}: not a readable Parquet file ({problem}).") from None
