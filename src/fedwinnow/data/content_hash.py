"""A hash of the content of the data: up to a gigabyte all bytes are read, above that evenly spaced pieces.

A run stores it, so that a later change of the data is noticed. It is not part of the hash of a scene.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedwinnow.errors import DataError

LARGEST = 10**9  # bytes up to which everything is read
MOST_FILES = 100_000  # files up to which every size is looked up
PIECES, PIECE = 1024, 1 << 16  # above that: the number of pieces that are read, and the bytes of each
BLOCK = 1 << 22
RECENT = 2 * 10**9  # nanoseconds

Known = tuple[str, int, int, int, int]  # path, size, when it was written, when anything about it changed, inode
KNOWN: dict[Known, str] = {}  # files that were read by this process: the runs of a sweep share their data


class Hash(Protocol):
    """A hash of hashlib."""

    def update(self, data: Any, /) -> None: ...


@dataclass(frozen=True)
class Contents:
    """The hash of the data, its name for a message, and whether only pieces were read."""

    name: str
    hash: str
    sampled: bool = False

    def as_value(self) -> dict[str, Any]:
        """The values that are written to a file."""
        return {"name": self.name, "hash": self.hash, "sampled": self.sampled}


# --- files ---------------------------------------------------------------------------------------------------------


def contents_of_files(name: str, paths: Sequence[str | Path]) -> Contents:
    """The hash of the content of these files, in this order; their names do not count."""
    try:
        if len(paths) > MOST_FILES:
            chosen = [paths[place] for place in evenly(len(paths), PIECES)]
            return Contents(name, pieces_of([(path, 0) for path in chosen], map(size_of, chosen)), sampled=True)
        sizes = [size_of(path) for path in paths]
        if sum(sizes) <= LARGEST:
            digest = hashlib.sha256()
            for path in paths:
                digest.update(bytes.fromhex(hash_of_file(path)))
            return Contents(name, digest.hexdigest())
        ends = np.cumsum(sizes)
        starts = evenly(int(ends[-1]), PIECES)
        files = np.searchsorted(ends, starts, side="right")
        places = [
            (paths[file], start - int(ends[file]) + sizes[file]) for start, file in zip(starts, files, strict=True)
        ]
        return Contents(name, pieces_of(places, sizes), sampled=True)
    except OSError as problem:
        raise DataError(f"{problem.filename}: cannot be read ({problem.strerror}). Check the data.") from None


def hash_of_file(path: str | Path) -> str:
    """sha256 of a whole file; a file that this process has read and that has not changed is not read again."""
    status = os.stat(path)
    key = (os.path.realpath(path), status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
    if key in KNOWN:
        return KNOWN[key]
    with open(path, "rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) > RECENT:
        KNOWN[key] = found  # a file of this moment could be written again without a change of its time
    return found


def size_of(path: str | Path) -> int:
    """How long a file is."""
    return os.stat(path).st_size


def pieces_of(places: Sequence[tuple[str | Path, int]], sizes: Iterable[int]) -> str:
    """A hash of the sizes, and of a piece from each of these places in files."""
    digest = hashlib.sha256(",".join(map(str, sizes)).encode())
    for path, start in places:
        with open(path, "rb") as stream:
            stream.seek(start)
            digest.update(stream.read(PIECE))
    return digest.hexdigest()


def evenly(count: int, pieces: int) -> list[int]:
    """Evenly spaced numbers from 0 to `count` - 1, at most `pieces`; the last is among them, as files grow there."""
    return sorted({round(place) for place in np.linspace(0, count - 1, min(pieces, count)).tolist()})


# --- arrays --------------------------------------------------------------------------------------------------------


def contents_of_arrays(name: str, arrays: Sequence[NDArray[Any]]) -> Contents:
    """The hash of the content of these arrays, in this order; each has a sample per row."""
    digest = hashlib.sha256()
    sampled = sum(array.nbytes for array in arrays) > LARGEST
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        add_array(digest, array, sampled=sampled and array.nbytes > PIECES * PIECE)
    return Contents(name, digest.hexdigest(), sampled)


def add_array(digest: Hash, array: NDArray[Any], *, sampled: bool = False) -> None:
    """Add the bytes of an array block by block, so that an array mapped from a file is never whole in memory."""
    if array.dtype.hasobject:
        digest.update("\0".join(map(repr, array.ravel().tolist())).encode(errors="surrogateescape"))
        return
    if array.ndim == 0 or not array.size:
        digest.update(array.tobytes())
        return
    row = max(array.nbytes // len(array), 1)
    rows = np.array(evenly(len(array), max(PIECES * PIECE // row, 1))) if sampled else None
    step = max(BLOCK // row, 1)
    for start in range(0, len(array) if rows is None else len(rows), step):
        block = array[start : start + step] if rows is None else array[rows[start : start + step]]
        digest.update(np.ascontiguousarray(block).reshape(-1).view(np.uint8).data)
