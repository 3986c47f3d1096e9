"""Tables in Parquet files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from fedwinnow.data.packed_cells import pack
from fedwinnow.data.source_files import ALWAYS_ALLOWED, MOST_TIMES, existing_file
from fedwinnow.data.sources.table_source import TableSource
from fedwinnow.data.table_reading import TextTable, as_texts
from fedwinnow.errors import DataError, missing_extra


@dataclass(frozen=True)
class Parquet(TableSource):
    """A Parquet file; its columns are used like those of a CSV file (needs the extra `parquet`)."""

    name: ClassVar[str] = "parquet"

    def read_file(self, path: Path) -> TextTable:
        return text_table(path, read_arrow(path))


def text_table(path: Path, content: Any) -> TextTable:
    """A pyarrow table as cells."""
    from pyarrow import types

    if content.num_rows == 0 or content.num_columns == 0:
        raise DataError(f"{path} has no rows.")
    if len(set(content.column_names)) < content.num_columns:
        raise DataError(f"{path}: two columns have the same name. Rename one of them.")
    columns, unreadable, orders = {}, {}, {}
    for name, column in zip(content.column_names, content.columns, strict=True):
        if types.is_nested(column.type) or types.is_binary(column.type) or types.is_large_binary(column.type):
            unreadable[name] = f"values of the type {column.type}"
        else:
            columns[name] = pack(as_texts(column.to_pylist()))
        if types.is_dictionary(column.type) and column.type.ordered:
            orders[name] = tuple(as_texts(column.unify_dictionaries().chunk(0).dictionary.to_pylist()))
    return TextTable(path, columns, unreadable=unreadable, orders=orders)


MOST_CELLS = 5 * 10**8  # that a file of any size may state


def read_arrow(path: Path) -> Any:
    """The file as a pyarrow table."""
    with opened_parquet(path) as file:
        return file.read()


@contextmanager
def opened_parquet(path: Path) -> Iterator[Any]:
    """An opened file; whatever the package raises while it is read becomes an error of ours."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise missing_extra("parquet", "reading Parquet files") from None
    existing_file(path)
    try:
        with parquet.ParquetFile(path) as file:
            refuse_bomb(path, file.metadata)
            yield file
    except (pyarrow.ArrowException, OSError, ValueError, MemoryError) as problem:
        reason = str(problem).split("\n")[0][:200]
        raise DataError(f"{path}: not a readable Parquet file ({reason}). Write it again.") from None


def refuse_bomb(path: Path, metadata: Any) -> None:
    """Refuse a small file that would fill the memory, from the sizes that it states."""
    stated = sum(metadata.row_group(place).total_byte_size for place in range(metadata.num_row_groups))
    size, cells = path.stat().st_size, metadata.num_rows * max(metadata.num_columns, 1)
    if stated > max(ALWAYS_ALLOWED, MOST_TIMES * size) or cells > max(MOST_CELLS, MOST_TIMES * size):
        raise DataError(
            f"{path}: {metadata.num_rows} rows of {metadata.num_columns} columns, {stated / 1e9:.3g} GB, would come "
            f"out of a file of {size / 1e6:.3g} MB; allowed: {ALWAYS_ALLOWED / 1e9:.3g} GB, or {MOST_TIMES} times the "
            "size of the file."
        )
