"""Arrays in an .npz file of NumPy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

from fedwinnow.data.arrays import from_arrays
from fedwinnow.data.content_hash import contents_of_files
from fedwinnow.data.dataset import Dataset
from fedwinnow.data.source import Source
from fedwinnow.data.source_files import hash_of_files, read_npz
from fedwinnow.errors import DataError
from fedwinnow.options import option

KEYS = ("x", "y", "x_test", "y_test", "id", "site", "true", "class_names")


@dataclass(frozen=True)
class Npz(Source):
    """An .npz file with the arrays x and y, and optionally x_test, y_test, id, site, true and class_names.

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

    def load(self) -> Dataset:
        """Read the arrays and check every one."""
        arrays = read_npz(self.path, KEYS if self.site is None else (*KEYS, self.site))
        if self.site is not None and self.site not in arrays:
            raise DataError(
                f"{self.path} has no array '{self.site}', which site={self.site} names; give the name of an array with "
                f"the site of every sample, or leave it out if it is called site."
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
            true=arrays.get("true"),
            class_names=arrays.get("class_names"),
            name=str(self.path),
            kind=self.kind,
            vocabulary=self.vocabulary,
        )
        contents = contents_of_files(self.path.name, [self.path])
        return replace(dataset, name=self.path.stem, source_hash=hash_of_files([self.path]), contents=contents)
