"""Arrays out of .npz files: numbers and texts only, never an object, which could run code when it is read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwinnow.data.files import existing_file
from fedwinnow.errors import DataError


def read_npz(path: Path, names: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
    """The arrays of these names that are in the file, or all of them."""
    existing_file(path)
    name = ""
    try:
        opened = np.load(path, allow_pickle=False, mmap_mode="r")
        if isinstance(opened, np.ndarray):
            raise DataError(f"{path} holds a single array; an .npz file of named arrays is needed (numpy.savez).")
        arrays = {}
        with opened as archive:
            for name in archive.files:
                if names is None or name in names:
                    arrays[name] = archive[name]
                    if not isinstance(arrays[name], np.ndarray):
                        raise DataError(f"{path}, array '{name}': the file in the archive is no NumPy array.")
    except DataError:
        raise
    except Exception as problem:  # zipfile, zlib and numpy raise nearly anything on a broken file
        raise DataError(
            f"{path}{f', array {name!r}' if name else ''}: not readable as an .npz file of plain arrays "
            f"({reason_of(problem, name)}). Write it with numpy.savez from arrays of numbers or texts."
        ) from None
    return arrays


def reason_of(problem: Exception, name: str) -> str:
    """What NumPy says, in better words where it speaks of pickle, as it does of any file that it does not know."""
    reason = (str(problem) or type(problem).__name__).split("\n")[0]
    if "allow_pickle" in reason:
        return "it holds Python objects, which are never loaded" if name else "it is no archive of arrays"
    return reason
