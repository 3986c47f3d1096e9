"""A hash of the content of the data: up to a gigabyte all bytes are read, above that evenly spaced pieces.

A run stores it, so that a later change of the data is noticed. It is not part of the hash of a scene. Samples with
the same content are found in the same way.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from fedwinnow.errors import DataError
from fedwinnow.randomness import mix

LARGEST = 10**9  # bytes up to which everything is read
MOST_FILES = 100_000  # files up to which every size is looked up
PIECES, PIECE = 1024, 1 << 16  # above that: the number of pieces that are read, and the bytes of each
BLOCK = 1 << 22
RECENT = 2 * 10**9  # nanoseconds
SAMPLES_AT_ONCE = 1 << 24  # bytes
WORD = 8  # bytes

Integers = NDArray[np.int64]
Known = tuple[str, int, int, int, int]  # path, size, when it was written, when anything about it changed, inode
KNOWN: dict[Known, str] = {}  # files that were read by this process: the runs of a sweep share their data


class Hash(Protocol):
    """A hash of hashlib."""

    def update(self, data: Any, /) -> None: ...


class Held(Protocol):
    """The features of samples."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    def __len__(self) -> int: ...

    def take(self, rows: Integers) -> NDArray[Any]: ...


SAME_CONTENT: WeakKeyDictionary[Held, Integers] = WeakKeyDictionary()  # a site asks before every message


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


# --- samples -------------------------------------------------------------------------------------------------------


def contents_in(features: Held) -> Integers:
    """Per sample the place of the first one with the same content: of a copy, that of the sample it is a copy of.

    Of pictures that are decoded when they are needed, the files are compared.
    """
    found = SAME_CONTENT.get(features)
    if found is None:
        paths = getattr(features, "paths", None)
        names = hashes_of_files(paths) if paths is not None else hashes_of_features(features)
        found = SAME_CONTENT[features] = first_of_same(names)
    return found


def first_of_same(names: NDArray[Any]) -> Integers:
    """For every value the place of the first that is equal."""
    _, first, number = np.unique(names, return_index=True, return_inverse=True)
    return np.asarray(first[number.reshape(-1)], np.int64)


def hashes_of_files(paths: tuple[str, ...]) -> NDArray[np.str_]:
    """What files have in them, by a hash; only those that have the length of another are read."""
    try:
        lengths = np.array([os.stat(path).st_size for path in paths])
        _, length, times = np.unique(lengths, return_inverse=True, return_counts=True)
        alike = times[length] > 1
        names = [
            hash_of_file(path) if again else str(place)
            for place, (path, again) in enumerate(zip(paths, alike.tolist(), strict=True))
        ]
    except OSError as problem:
        raise DataError(f"{problem.filename}: cannot be read ({problem.strerror}). Check the data.") from None
    return np.array(names)


def hashes_of_features(features: Held) -> NDArray[np.uint64]:
    """A hash of 64 bits of each sample in memory."""
    size = max(int(np.prod(features.shape)) * features.dtype.itemsize, 1)
    rows = np.arange(len(features))
    step = max(SAMPLES_AT_ONCE // size, 1)
    hashes = [hashes_of(features.take(rows[start : start + step])) for start in range(0, len(rows), step)]
    return np.concatenate([np.zeros(0, np.uint64), *hashes])


def hashes_of(samples: NDArray[Any]) -> NDArray[np.uint64]:
    """A hash of every sample: its words, each mixed with its place, added up."""
    table = np.ascontiguousarray(samples).reshape(len(samples), -1)
    if np.issubdtype(table.dtype, np.floating):
        table = table + table.dtype.type(0)  # -0 and 0 are the same number
    table = table.view(np.uint8)
    words = -(-table.shape[1] // WORD)
    padded = np.zeros((len(table), words * WORD), np.uint8)
    padded[:, : table.shape[1]] = table
    places = np.arange(1, words + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return np.asarray(mix(padded.view("<u8") ^ mix(places)).sum(1, dtype=np.uint64))
