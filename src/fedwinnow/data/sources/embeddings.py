"""Vectors that another program has computed, one per sample, in a Parquet or .npz file with ids."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedwinnow.data.arrays import ids_of, to_array
from fedwinnow.data.content_hash import contents_of_files
from fedwinnow.data.dataset import Dataset
from fedwinnow.data.input_form import InputForm
from fedwinnow.data.new_samples import NewSamples, of_array
from fedwinnow.data.pace import Pace
from fedwinnow.data.source_files import existing_file, hash_of_files, read_npz
from fedwinnow.data.sources.labelled_files import LabelledFiles, LabelTable, Vectors, lost_zeros
from fedwinnow.data.sources.parquet import opened_parquet, text_table
from fedwinnow.data.table_reading import TextTable
from fedwinnow.errors import DataError, UsageError, unknown
from fedwinnow.options import option

PIECE = 10_000  # rows that are read at a time
IDS = ("id", "ids")
VECTORS = ("x", "embeddings", "features")  # names under which an .npz file may have them


@dataclass(frozen=True)
class Embeddings(LabelledFiles):
    """A Parquet or .npz file with an id and a vector per sample, and a table of labels with the same ids.

    Parquet: a column of lists, or a column per number (extra `parquet`); .npz: the arrays `id` and `x`. The vectors are
    used as they are; `--encoder rows` scales them as features are scaled.
    """

    name: ClassVar[str] = "embeddings"

    path: Path = option(..., "The file: .parquet or .npz.")
    labels: Path | None = option(
        None, "A table (.csv, .tsv, .xlsx, .parquet) with labels by id; without it the Parquet file has them itself."
    )
    id: str = option("id", "The column with the ids, in the table of labels and in a Parquet file.")
    vector: str | None = option(
        None, "The column or array with the vectors; without it the only column of lists, or all columns of numbers."
    )
    group: str | None = option(None, "The column that says which samples belong together (a patient).")

    def columns(self) -> dict[str, str | None]:
        return {**super().columns(), "group": self.group}

    def load(self) -> Dataset:
        """Read the labels, then the vectors that they name."""
        labels = self.read_labels()
        ids, vectors = self.read_vectors()
        rows, places = self.joined(labels, ids)
        hashed = hash_of_files(sorted({labels.path, self.path}))
        contents = contents_of_files(self.path.name, sorted({labels.path, self.path}))
        return self.dataset_of_vectors(labels, rows, vectors[places], hashed, contents)

    def load_new(self, form: InputForm) -> NewSamples:
        """The vectors of the file, or those that the table names."""
        ids, vectors = self.read_vectors()
        if self.labels is None:
            return NewSamples(self.path.stem, of_array(str(self.path), vectors, form), ids)
        labels = self.read_labels()
        rows, places = self.joined(labels, ids)
        return self.new_samples(self.path.stem, labels, rows, of_array(str(self.path), vectors[places], form), form)

    def label_path(self) -> Path:
        if self.labels is not None or self.path.suffix.lower() != ".parquet":
            return super().label_path()
        return self.path

    def read_table(self, path: Path) -> TextTable:
        """The table of labels; of a Parquet file with vectors only the columns that have another role."""
        if self.labels is not None:
            return super().read_table(path)
        with opened_parquet(path) as file:
            names = file.schema_arrow.names
            asked = [name for name in self.columns().values() if name in names]
            return text_table(path, file.read(columns=asked))

    def joined(self, labels: LabelTable, ids: NDArray[np.str_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The rows of the table that have a vector, and the places of these vectors."""
        known = {name: place for place, name in enumerate(ids.tolist())}
        places = np.array([known.get(name, -1) for name in labels.ids.tolist()], np.int64)
        rows, absent = np.flatnonzero(places >= 0), np.flatnonzero(places < 0)
        if len(absent) and (not self.partial or not len(rows)):
            raise DataError(
                f"{labels.table.place(int(absent[0]))}: {self.path} has no vector with the id "
                f"'{labels.ids[absent[0]]}' ({len(absent)} of {len(places)} rows have none). "
                f"{lost_zeros(labels.ids.tolist(), known) or f'Ids must be written alike in both (id={self.id}).'} "
                "To use only what is there: partial=true"
            )
        if len(absent):
            self.tell(f"{len(absent)} of {len(places)} rows of {labels.path.name} have no vector and are left out")
        return rows, places[rows]

    def read_vectors(self) -> tuple[NDArray[np.str_], Vectors]:
        """All ids and vectors of the file."""
        existing_file(self.path)
        reader = {".npz": self.of_npz, ".parquet": self.of_parquet}.get(self.path.suffix.lower())
        if reader is None:
            raise UsageError(f"{self.name}: path={self.path} was given; allowed: a file that ends in .npz or .parquet.")
        return reader()

    # --- .npz ------------------------------------------------------------------------------------------------------

    def of_npz(self) -> tuple[NDArray[np.str_], Vectors]:
        """The vectors of an .npz file."""
        wanted = VECTORS if self.vector is None else (self.vector,)
        arrays = read_npz(self.path, (*dict.fromkeys((self.id, *IDS)), *wanted))
        ids = next((arrays[name] for name in (self.id, *IDS) if name in arrays), None)
        found = next((arrays[name] for name in wanted if name in arrays), None)
        if found is None or ids is None:
            lacking = f"'{wanted[0]}' with the vectors" if found is None else f"'{self.id}' with the ids"
            more = "; vector=NAME names another one" if found is None else ""
            raise DataError(f"{self.path} has no array {lacking}{more}.")
        array = to_array(str(self.path), "the array of vectors", found)
        if array.ndim != 2 or 0 in array.shape or array.dtype.kind == "U":
            raise DataError(
                f"{self.path}: the vectors have the shape {array.shape} and the type {array.dtype}; needed: samples x "
                "numbers."
            )
        with np.errstate(over="ignore"):
            vectors = np.asarray(array, np.float32)
        refuse_strange(self.path, vectors)
        return np.asarray(ids_of(str(self.path), ids, len(vectors)), np.str_), vectors

    # --- Parquet ---------------------------------------------------------------------------------------------------

    def of_parquet(self) -> tuple[NDArray[np.str_], Vectors]:
        """The vectors of a Parquet file, read piece by piece."""
        with opened_parquet(self.path) as file:
            names, count = file.schema_arrow.names, file.metadata.num_rows
            if self.id not in names:
                raise DataError(f"{self.path}: {unknown('column', self.id, names)} id= names the column of the ids.")
            if not count:
                raise DataError(f"{self.path} has no rows.")
            table = text_table(self.path, file.read(columns=[self.id]))
            chosen = self.vector_columns(file.schema_arrow)
            vectors: Vectors | None = None
            start, pace = 0, Pace(count, "rows", "read")
            for batch in file.iter_batches(batch_size=PIECE, columns=chosen):
                piece = numbers_in(self.path, batch, chosen, start)
                if vectors is None:
                    vectors = np.empty((count, piece.shape[1]), np.float32)
                if piece.shape[1] != vectors.shape[1]:
                    raise other_length(self.path, start, piece.shape[1], vectors.shape[1])
                refuse_strange(self.path, piece, start)
                vectors[start : start + len(piece)] = piece
                start += len(piece)
                pace.add(len(piece))
            assert vectors is not None
        return table.id_column(self.id), vectors

    def vector_columns(self, schema: Any) -> list[str]:
        """The columns that make up the vectors."""
        from pyarrow import types

        lists = [
            field.name
            for field in schema
            if types.is_list(field.type) or types.is_large_list(field.type) or types.is_fixed_size_list(field.type)
        ]
        if self.vector is not None:
            if self.vector not in lists:
                raise DataError(
                    f"{self.path}: {unknown('column of lists', self.vector, lists)} vector= names the column in which "
                    "every cell is a list of numbers."
                )
            return [self.vector]
        if lists:
            if len(lists) > 1:
                raise DataError(f"{self.path}: which column has the vectors: {', '.join(lists)}? Name it: vector=...")
            return lists
        roles = set(self.columns().values())
        wide = [
            field.name
            for field in schema
            if field.name not in roles and (types.is_integer(field.type) or types.is_floating(field.type))
        ]
        if not wide:
            raise DataError(f"{self.path} has no column of lists and no column of numbers besides the ids and labels.")
        return wide


def numbers_in(path: Path, batch: Any, names: list[str], start: int) -> Vectors:
    """The vectors of a piece: lists of one length, or a column per number."""
    from pyarrow import types

    first = batch.column(0)
    if not types.is_nested(first.type):
        for column in batch.columns:
            refuse_gap(path, column, start)
        with np.errstate(over="ignore"):
            return np.stack([np.asarray(column, np.float32) for column in batch.columns], axis=1)
    refuse_gap(path, first, start)
    values = first.flatten()
    if not (types.is_integer(values.type) or types.is_floating(values.type)):
        raise DataError(f"{path}: the lists in '{names[0]}' hold values of the type {values.type}; needed: numbers.")
    lengths = np.asarray(first.value_lengths()) if not types.is_fixed_size_list(first.type) else None
    length = first.type.list_size if lengths is None else int(lengths[0])
    if lengths is not None and (lengths != length).any():
        bad = int(np.flatnonzero(lengths != length)[0])
        raise other_length(path, start + bad, int(lengths[bad]), length)
    if not length:
        raise DataError(f"{path}, row {start + 1}: the vector is empty. Compute it again.")
    if values.null_count:
        bad = int(np.flatnonzero(np.asarray(values.is_null()))[0]) // length
        raise DataError(f"{path}, row {start + bad + 1}: a number of the vector is missing. Compute it again.")
    with np.errstate(over="ignore"):
        return np.asarray(values, np.float32).reshape(len(batch), length)


def refuse_gap(path: Path, column: Any, start: int) -> None:
    """Refuse a row without a value."""
    if column.null_count:
        bad = int(np.flatnonzero(np.asarray(column.is_null()))[0])
        raise DataError(f"{path}, row {start + bad + 1}: the vector is missing. Compute it again, or remove the row.")


def refuse_strange(path: Path, vectors: Vectors, start: int = 0) -> None:
    """Refuse a vector with a number that is missing, or too large to be stored."""
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(bad):
        raise DataError(
            f"{path}, row {start + int(bad[0]) + 1}: a number of the vector is missing, infinite or too large. "
            "Compute it again, or remove the row."
        )


def other_length(path: Path, row: int, found: int, usual: int) -> DataError:
    """The error for vectors that differ in length."""
    return DataError(
        f"{path}, row {row + 1}: a vector of {found} numbers; those above have {usual}. Compute all with one model."
    )
