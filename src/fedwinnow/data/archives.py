"""Reading arrays of numbers and texts from .npz files; Python objects are refused, because they could run code."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwinnow.data.source_files import existing_file
from fedwinnow.errors import DataError

ALWAYS_ALLOWED = 10**9  # bytes of arrays that a file of any size may hold
MOST_TIMES = 100  # more bytes are allowed up to this many times the size of the file


def read_npz(path: Path, names: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
    """The arrays in the file that have these names, or all of them."""
    existing_file(path)
    name = ""
    try:
        opened = np.load(path, allow_pickle=False, mmap_mode="r")
        if isinstance(opened, np.ndarray):
            raise DataError(f"{path} holds a single array; an .npz file of named arrays is needed (numpy.savez).")
        arrays = {}
        with opened as archive:
            refuse_bomb(path, archive, names)
            for name in archive.files:
                if names is None or name in names:
                    arrays[name] = archive[name]
                    if not isinstance(arrays[name], np.ndarray):
                        raise DataError(f"{path}, array '{name}': the file in the archive is not a NumPy array.")
    except DataError:
        raise
    except Exception as problem:  # zipfile, zlib and numpy raise nearly anything on a broken file
        raise DataError(
            f"{path}{f', array {name!r}' if name else ''}: not readable as an .npz file of plain arrays "
            f"({reason_of(problem, name)}). Write it with numpy.savez from arrays of numbers or texts."
        ) from None
    return arrays


def refuse_bomb(path: Path, archive: Any, names: Sequence[str] | None) -> None:
    """Refuse a small file that would fill the memory, from the sizes in its headers, before it is unpacked."""
    allowed = max(ALWAYS_ALLOWED, MOST_TIMES * path.stat().st_size)
    total = 0
    for info in archive.zip.infolist():
        name = info.filename.removesuffix(".npy")
        if names is None or name in names:
            total += max(info.file_size, stated_size(archive.zip, info))
            if total > allowed:
                raise DataError(
                    f"{path}, array {name!r}: {total / 1e9:.3g} GB would come out of a file of "
                    f"{path.stat().st_size / 1e6:.3g} MB; allowed: {ALWAYS_ALLOWED / 1e9:.3g} GB, or {MOST_TIMES} "
                    f"times the size of the file. If the size is right, write it without compression (numpy.savez)."
                )


def stated_size(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> int:
    """How many bytes an array will take by its header; 0 where the header cannot be read."""
    try:
        with archive.open(info) as stream:
            version = np.lib.format.read_magic(stream)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = read(stream)
            return math.prod(shape) * dtype.itemsize
    except Exception:  # zipfile, zlib and numpy raise nearly anything on a broken file; `read_npz` reports it
        return 0


def reason_of(problem: Exception, name: str) -> str:
    """NumPy's message, or a better one where NumPy speaks of pickle, as it does for every file it does not know."""
    reason = (str(problem) or type(problem).__name__).split("\n")[0]
    if "allow_pickle" in reason:
        return "it holds Python objects, which are never loaded" if name else "it is not an archive of arrays"
    return reason
