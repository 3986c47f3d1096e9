"""Arrays in an .npz file of NumPy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from fedwinnow.data.arrays import from_arrays, ids_of, labels_of, names_of, sites_of
from fedwinnow.data.content_hash import contents_of_files
from fedwinnow.data.dataset import Dataset
from fedwinnow.data.input_form import InputForm
from fedwinnow.data.labels import number_of
from fedwinnow.data.new_samples import NewSamples, check_classes, of_array
from fedwinnow.data.source import Source
from fedwinnow.data.source_files import hash_of_files, read_npz
from fedwinnow.errors import DataError
from fedwinnow.options import option

KEYS = ("x", "y", "x_test", "y_test", "id", "site", "group", "true", "class_names")


@dataclass(frozen=True)
class Npz(Source):
    """An .npz file with the arrays x and y, and optionally x_test, y_test, id, site, group, true, class_names.

    uint8 arrays of three or four axes are images, arrays of two axes are rows of numbers, used as they are.
    """

    name: ClassVar[str] = "npz"

    path: Path = option(..., "The file.")
    kind: Literal["auto", "images", "rows", "tokens"] = option(
        "auto", "What x holds; auto finds out whether it is images or rows, but not token ids."
    )
    vocabulary: int | None = option(
        None, "How many token ids there are; without it one more than the largest.", at_least=2
    )

    site: str | None = option(
        None, "The array with the site of every sample; without it the array `site`, where the file has one."
    )

    group: str | None = option(
        None,
        "The array that says which samples belong together (a patient); without it the array `group`, if there is one.",
    )

    def load(self) -> Dataset:
        """Read the arrays and check every one."""
        named = {role: name for role, name in (("site", self.site), ("group", self.group)) if name is not None}
        arrays = read_npz(self.path, (*KEYS, *named.values()))
        for role, name in named.items():
            if name not in arrays:
                raise DataError(
                    f"{self.path} has no array '{name}', which {role}={name} names; give the name of an array with "
                    f"the {role} of every sample, or leave it out if it is called {role}."
                )
        for key in ("x", "y"):
            if key not in arrays:
                raise DataError(
                    f"{self.path} has no array '{key}'; needed: x and y; also allowed: {', '.join(KEYS[2:])}."
                )
        dataset = from_arrays(
            arrays["x"],
            arrays["y"],
            x_test=arrays.get("x_test"),
            y_test=arrays.get("y_test"),
            ids=arrays.get("id"),
            sites=arrays.get(self.site or "site"),
            groups=arrays.get(self.group or "group"),
            true=arrays.get("true"),
            class_names=arrays.get("class_names"),
            name=str(self.path),
            kind=self.kind,
            vocabulary=self.vocabulary,
        )
        contents = contents_of_files(self.path.name, [self.path])
        return replace(dataset, name=self.path.stem, source_hash=hash_of_files([self.path]), contents=contents)

    def load_new(self, form: InputForm) -> NewSamples:
        """The samples in x; y, id, site and true are used where they are there."""
        arrays = read_npz(self.path, KEYS)
        if "x" not in arrays:
            raise DataError(
                f"{self.path} has no array 'x'; needed: x, the samples; also allowed: {', '.join(KEYS[4:])}, y."
            )
        where, names = str(self.path), form.class_names
        features = of_array(f"{where}: x", arrays["x"], form)
        count = len(features)
        given = {key: arrays.get(key) for key in ("y", "true")}
        if "class_names" in arrays:
            check_classes(where, names_of(where, np.empty(0), arrays["class_names"]), form)
        # A whole number is a position among class names that are words, and else a name itself.
        indexed = "class_names" in arrays or not all(number_of(name) is not None for name in names)
        labels = {
            key: None if values is None else labels_of(where, key, values, names, count, indexed)
            for key, values in given.items()
        }
        return NewSamples(
            name=self.path.stem,
            features=features,
            ids=ids_of(where, arrays["id"], count) if "id" in arrays else np.arange(count),
            labels=labels["y"],
            true=labels["true"],
            sites=sites_of(where, arrays["site"], count) if "site" in arrays else None,
        )
