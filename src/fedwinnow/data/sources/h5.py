"""Vectors that another program has computed, in a folder of HDF5 files: one file per slide or patient."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedwinnow.data.bags import mean_of_bag
from fedwinnow.data.content_hash import contents_of_files
from fedwinnow.data.dataset import Dataset
from fedwinnow.data.input_form import InputForm
from fedwinnow.data.new_samples import NewSamples, of_array
from fedwinnow.data.pace import Pace
from fedwinnow.data.source_files import hash_of_names
from fedwinnow.data.sources.labelled_files import LabelledFiles, LabelTable, Vectors, by_name
from fedwinnow.errors import DataError
from fedwinnow.options import option

ENDINGS = (".h5", ".hdf5", ".he5")


@dataclass(frozen=True)
class H5(LabelledFiles):
    """A folder of HDF5 files, one per slide or patient, each with a bag of vectors (needs the extra `h5`).

    A sample is the mean of its vectors, used as it is; `--encoder rows` scales it as features are scaled.
    """

    name: ClassVar[str] = "h5"

    key: str | None = option(
        None, "The array with the vectors; without it `features`, or the only array with a row per vector."
    )
    group: str | None = option(None, "The column that says which files belong together (a patient).")

    def columns(self) -> dict[str, str | None]:
        return {**super().columns(), "group": self.group}

    def load(self) -> Dataset:
        """Read the labels, then the vectors."""
        labels = self.read_labels()
        rows, paths = self.found(labels)
        vectors = self.vectors(paths, labels, rows)
        hashed = hash_of_names([labels.path, *paths], [labels.path.name, *map(str, labels.ids[rows])])
        contents = contents_of_files(self.path.resolve().name, [labels.path, *paths])
        return self.dataset_of_vectors(labels, rows, vectors, hashed, contents)

    def load_new(self, form: InputForm) -> NewSamples:
        """The files below the folder, or those of the table."""
        name = self.path.resolve().name or self.name
        if self.labels is None:
            paths = self.files(ENDINGS)
            features = of_array(str(self.path), self.vectors(paths), form)
            return NewSamples(name, features, np.array([path.relative_to(self.path).as_posix() for path in paths]))
        labels = self.read_labels()
        rows, paths = self.found(labels)
        features = of_array(str(self.path), self.vectors(paths, labels, rows), form)
        return self.new_samples(name, labels, rows, features, form)

    def found(self, labels: LabelTable) -> tuple[NDArray[np.int64], list[Path]]:
        """The rows that have a file, and their files."""
        hint = f"A file is named by its path in the folder or its name (id={self.id})."
        return self.matched(labels, by_name(self.path, self.files(ENDINGS)), hint)

    def vectors(
        self, paths: list[Path], labels: LabelTable | None = None, rows: NDArray[np.int64] | None = None
    ) -> Vectors:
        """The mean of each file; all must have as many numbers as most have."""
        found, pace = [], Pace(len(paths), "files", "read")
        for place, path in enumerate(paths):
            try:
                found.append(mean_of_bag(path, self.key))
            except DataError as problem:
                raise DataError(f"{place_in(labels, rows, place)}{problem}") from None
            pace.add(1)
        widths = Counter(map(len, found))
        usual = max(widths, key=lambda width: (widths[width], width))
        for place, vector in enumerate(found):
            if len(vector) != usual:
                raise DataError(
                    f"{place_in(labels, rows, place)}{paths[place]}: vectors of {len(vector)} numbers; those of the "
                    f"other files have {usual}. Compute all of them with the same model."
                )
        return np.stack(found)


def place_in(labels: LabelTable | None, rows: NDArray[np.int64] | None, place: int) -> str:
    """The row of the table that names a file, for the beginning of an error."""
    return "" if labels is None or rows is None else f"{labels.table.place(int(rows[place]))}: "
