"""What a trained model must know of its data, without any sample: how new samples become its input, and its classes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedwinnow.data.column import Column
from fedwinnow.data.dataset import Dataset, Kind
from fedwinnow.data.schema import column_from
from fedwinnow.errors import DataError
from fedwinnow.files import Form, demand

VERSION = 1
FILE = "input.json"  # in a run folder

FORM: Form = {
    "version": int,
    "kind": str,
    "sample_shape": [int],
    "class_names": [str],
    "mean": [float],
    "std": [float],
    "vocabulary": int,
    "hashed_words": bool,
    "columns": [dict],
    "roles": {"*": str},
}


@dataclass(frozen=True)
class InputForm:
    """The samples that a model was trained on: their kind and shape, normalisation, columns, and the classes."""

    kind: Kind
    sample_shape: tuple[int, ...]  # as stored: an image is (height, width, channels)
    class_names: tuple[str, ...]
    mean: tuple[float, ...] = ()  # per channel of an image, of pixel / 255
    std: tuple[float, ...] = ()
    vocabulary: int = 0  # how many token ids there are
    hashed_words: bool = False  # whether a token id is the hash of a word, so that texts can be given
    columns: tuple[Column, ...] = ()  # of a table whose columns are features
    roles: Mapping[str, str] = field(default_factory=dict)  # which column of the table was the label, id, text ...

    @classmethod
    def of(cls, dataset: Dataset) -> InputForm:
        """The form of a data set."""
        return cls(
            kind=dataset.kind,
            sample_shape=tuple(dataset.sample_shape),
            class_names=dataset.class_names,
            mean=dataset.mean,
            std=dataset.std,
            vocabulary=dataset.vocabulary,
            hashed_words=dataset.hashed_words,
            columns=dataset.columns,
            roles=dict(dataset.roles),
        )

    @property
    def classes(self) -> int:
        return len(self.class_names)

    @property
    def column_names(self) -> tuple[str, ...]:
        """The names of the columns of features, in the order of the model's input."""
        return tuple(column.title for column in self.columns)

    def raw_place(self, number: int) -> int:
        """The position of a column among the numbers that an exported model takes."""
        return sum(column.size for column in self.columns[:number])

    def described(self) -> str:
        """What one sample is, in words, for messages."""
        if self.columns:
            return f"a row of a table with the columns {', '.join(self.column_names)}"
        if self.kind == "images":
            height, width, channels = self.sample_shape
            return f"an image of {height} x {width} pixels and {channels} channel{'s' * (channels > 1)}"
        if self.kind == "tokens":
            return "a text" if self.hashed_words else f"a row of {self.sample_shape[0]} token ids"
        return f"a row of {self.sample_shape[0]} numbers"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        columns = [column.as_table() for column in self.columns]
        fields = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}
        return {"version": VERSION, **plain, "columns": columns, "roles": dict(self.roles)}

    @classmethod
    def from_dict(cls, values: Any, where: str) -> InputForm:
        """The form that `to_dict` wrote, checked."""
        demand(where, values, FORM)
        if values["version"] != VERSION:
            raise DataError(
                f"{where}: version {values['version']}; allowed: {VERSION}. Use the fedwinnow that wrote it."
            )
        values = {name: value for name, value in values.items() if name != "version"}
        if set(values) != {one.name for one in dataclasses.fields(cls)} or values["kind"] not in KINDS:
            raise DataError(f"{where}: not the input of a model. Restore the file.")
        tuples = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        columns = tuple(column_from(column, where) for column in values["columns"])
        found = cls(**(values | tuples | {"columns": columns}))
        if found.classes < 2 or len(found.sample_shape) != KINDS[found.kind] or min(found.sample_shape) < 1:
            raise DataError(
                f"{where}: samples of the shape {found.sample_shape} in {found.classes} classes do not exist."
            )
        if columns and sum(column.width for column in columns) != found.sample_shape[0]:
            raise DataError(f"{where}: its columns do not give {found.sample_shape[0]} numbers. Restore the file.")
        if len(found.mean) != len(found.std) or len(found.mean) not in (0, found.sample_shape[-1]):
            raise DataError(f"{where}: mean and std need one number per channel. Restore the file.")
        return found


KINDS = {"images": 3, "rows": 1, "tokens": 1}  # how many axes a stored sample has
