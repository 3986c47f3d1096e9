"""Arrays that are costly to unpack, kept as .npy files in the cache and mapped from there."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwinnow.atomic import replacing
from fedwinnow.data.published_files import read_stamp, write_stamp
from fedwinnow.data.source_files import cache_folder

Arrays = dict[str, NDArray[Any]]


def content_hash(arrays: Arrays) -> str:
    """A sha256 over names, shapes and contents, the same whatever kind of file they came from."""
    total = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        total.update(f"{name}/{array.dtype.str}/{array.shape}".encode())
        total.update(array.data)
    return total.hexdigest()


def converted(name: str, origins: Iterable[Path], make: Callable[[], Arrays]) -> tuple[Arrays, str]:
    """The arrays that `make` reads from these files, mapped from the cache, and their content hash."""
    seen = [[str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns] for path in sorted(origins)]
    key = hashlib.sha256(json.dumps(seen).encode()).hexdigest()[:16]
    folder = cache_folder() / "converted" / f"{name}-{key}"
    if (known := mapped(folder)) is not None:
        return known
    arrays = make()
    total = content_hash(arrays)
    try:
        for title, array in arrays.items():
            with replacing(folder / f"{title}.npy") as stream:
                np.save(stream, array, allow_pickle=False)
    except OSError:
        # No room or no right to write: the arrays in memory serve as well, only the next run pays again.
        shutil.rmtree(folder, ignore_errors=True)
        return arrays, total
    write_stamp(folder / "index.json", {"arrays": sorted(arrays), "sha256": total})
    return mapped(folder) or (arrays, total)


def mapped(folder: Path) -> tuple[Arrays, str] | None:
    """The arrays of an earlier conversion; None when there is none or a file is broken."""
    index = read_stamp(folder / "index.json")
    if not isinstance(index, dict):
        return None
    try:
        arrays = {
            title: np.load(folder / f"{title}.npy", mmap_mode="r", allow_pickle=False) for title in index["arrays"]
        }
        return arrays, index["sha256"]
    except (OSError, EOFError, ValueError, KeyError, TypeError):
        return None
