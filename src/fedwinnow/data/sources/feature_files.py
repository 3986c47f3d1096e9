"""A folder of features that `fedwinnow encode` has written."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedwinnow.data.arrays import from_arrays
from fedwinnow.data.content_hash import contents_of_files
from fedwinnow.data.dataset import Dataset
from fedwinnow.data.source import Source
from fedwinnow.data.source_files import existing_folder, hash_of_files
from fedwinnow.errors import DataError
from fedwinnow.files import json_of
from fedwinnow.options import option

FORMAT = 1
ABOUT = "encoder.json"  # comes last, when everything else is written; a folder of other origin has none
KEYS = ("x", "y", "x_test", "y_test", "id", "site", "group", "true", "class_names")


@dataclass(frozen=True)
class FeatureFolder(Source):
    """A folder of .npy files, as `fedwinnow encode` writes it: x.npy and y.npy, and more under the names of `npz`.

    x has a row of numbers per sample, as the encoder gave it; `--encoder rows` scales them as features are scaled.
    """

    name: ClassVar[str] = "features"

    path: Path = option(..., "The folder.")

    def load(self) -> Dataset:
        """Read the arrays and check every one."""
        folder = existing_folder(self.path)
        refuse_other_format(folder)
        paths = {key: folder / f"{key}.npy" for key in KEYS if (folder / f"{key}.npy").is_file()}
        for key in ("x", "y"):
            if key not in paths:
                raise DataError(f"{folder} has no file {key}.npy; needed: the folder of `fedwinnow encode`.")
        arrays = {key: read_npy(path) for key, path in paths.items()}
        dataset = from_arrays(
            arrays["x"],
            arrays["y"],
            x_test=arrays.get("x_test"),
            y_test=arrays.get("y_test"),
            ids=arrays.get("id"),
            sites=arrays.get("site"),
            groups=arrays.get("group"),
            true=arrays.get("true"),
            class_names=arrays.get("class_names"),
            name=str(folder),
            kind="rows",
        )
        contents = contents_of_files(folder.name, list(paths.values()))
        return replace(
            dataset, name=folder.name or "features", source_hash=hash_of_files(list(paths.values())), contents=contents
        )


def refuse_other_format(folder: Path) -> None:
    """Refuse a folder that another version of fedwinnow has written in another form."""
    if (folder / ABOUT).is_file():
        found = json_of(folder / ABOUT, {"format": int})["format"]
        if found != FORMAT:
            raise DataError(
                f"{folder / ABOUT}: the format of this folder is {found}; this version reads {FORMAT}. Write it again "
                f"with `fedwinnow encode`, or use the version that wrote it."
            )


def read_npy(path: Path) -> NDArray[Any]:
    """The array in a file; objects that would run code are refused."""
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as problem:
        raise DataError(f"{path}: not a readable array ({str(problem).splitlines()[0]}). Write it again.") from None
    if not isinstance(found, np.ndarray):
        raise DataError(f"{path}: not a single array. Write it again.")
    return found
