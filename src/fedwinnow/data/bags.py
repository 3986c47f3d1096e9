"""Bags of vectors in HDF5 files: the vectors of a slide or a patient, read in pieces and pooled to their mean."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwinnow.data.source_files import ALWAYS_ALLOWED, MOST_TIMES, existing_file
from fedwinnow.errors import DataError, missing_extra, unknown

BLOCK = 1 << 24  # bytes of vectors that are read at a time
MOST_NUMBERS = 1_000_000  # of one vector


@cache
def package() -> Any:
    """h5py, or the error that says how to get it."""
    try:
        import h5py
    except ImportError:
        raise missing_extra("h5", "reading HDF5 files") from None
    return h5py


def mean_of_bag(path: Path, key: str | None) -> NDArray[np.float32]:
    """The mean of the vectors in a file."""
    h5py = package()
    existing_file(path)
    try:
        with h5py.File(path, "r") as content:
            name = key or only_bag(path, content)
            return mean_of(path, checked_bag(path, content, name), name)
    except DataError:
        raise
    except Exception as problem:  # the library raises nearly anything on a broken file
        reason = str(problem).split("\n")[0][:200] or type(problem).__name__
        raise DataError(f"{path}: not a readable HDF5 file ({reason}). Write it again.") from None


def only_bag(path: Path, content: Any) -> str:
    """The name of the array of vectors: `features`, or the only one with a row of numbers per vector."""
    found = {name: array for name in content if (array := array_in(content, name)) is not None}
    if "features" in found:
        return "features"
    bags = [name for name, array in found.items() if array.ndim >= 2 and array.dtype.kind == "f"]
    if len(bags) == 1:
        return str(bags[0])
    there = ", ".join(sorted(content)) or "none"
    raise DataError(f"{path}: which array has the vectors? Name it with key=...; the file has: {there:.300}.")


def array_in(content: Any, name: str) -> Any:
    """The array of this name that is in the file itself; None for anything else."""
    h5py = package()
    if not isinstance(content.get(name, getlink=True), h5py.HardLink):
        return None  # a link may lead to another file
    found = content.get(name)
    return found if isinstance(found, h5py.Dataset) else None


def checked_bag(path: Path, content: Any, name: str) -> Any:
    """The array of vectors, after a look at its type, shape and size; nothing has been read yet."""
    place: Any = content
    for part in name.split("/")[:-1]:
        link = place.get(part, getlink=True) if isinstance(place, package().Group) else None
        place = place.get(part) if isinstance(link, package().HardLink) else None
    array = array_in(place, name.rpartition("/")[2]) if isinstance(place, package().Group) else None
    if array is None:
        raise DataError(f"{path}: {unknown('array', name, sorted(content))} Name it with key=...")
    if array.external or array.is_virtual:
        raise DataError(f"{path}: the array '{name}' is stored in other files, which are not read. Write it again.")
    if array.dtype.kind not in "fiu" or array.dtype.itemsize > 8:
        raise DataError(f"{path}: the array '{name}' has the type {array.dtype}; needed: numbers.")
    shape = vectors_shape(array.shape)
    if shape is None or 0 in shape or shape[1] > MOST_NUMBERS:
        raise DataError(
            f"{path}: the array '{name}' has the shape {array.shape}; needed: vectors x numbers, with at least one "
            f"vector and at most {MOST_NUMBERS} numbers."
        )
    size, allowed = shape[0] * shape[1] * array.dtype.itemsize, max(ALWAYS_ALLOWED, MOST_TIMES * path.stat().st_size)
    chunk = int(np.prod(array.chunks, dtype=np.float64)) * array.dtype.itemsize if array.chunks else 0
    if size > allowed or chunk > ALWAYS_ALLOWED:
        raise DataError(
            f"{path}: {max(size, chunk) / 1e9:.3g} GB would come out of a file of {path.stat().st_size / 1e6:.3g} MB; "
            f"allowed: {ALWAYS_ALLOWED / 1e9:.3g} GB, or {MOST_TIMES} times the size of the file. Write it again."
        )
    return array


def vectors_shape(shape: tuple[int, ...] | None) -> tuple[int, int] | None:
    """How many vectors of how many numbers: a single vector counts, and axes of length 1 before the vectors."""
    if not shape:
        return None
    while len(shape) > 2 and shape[0] == 1:
        shape = shape[1:]
    return (1, shape[0]) if len(shape) == 1 else (shape[0], shape[1]) if len(shape) == 2 else None


def mean_of(path: Path, array: Any, name: str) -> NDArray[np.float32]:
    """The mean of the vectors, added up piece by piece in double precision."""
    shape = vectors_shape(array.shape)
    assert shape is not None
    count, width = shape
    step = max(BLOCK // (width * array.dtype.itemsize), 1)
    total = np.zeros(width)
    for start in range(0, count, step):
        piece = array[...] if array.ndim == 1 else array[(0,) * (array.ndim - 2) + (slice(start, start + step),)]
        values = np.asarray(piece, np.float64).reshape(-1, width)
        bad = np.flatnonzero(~np.isfinite(values).all(axis=1))
        if len(bad):
            raise DataError(
                f"{path}, vector {start + int(bad[0]) + 1} of '{name}': a number is missing or infinite. Compute the "
                "vector again, or leave it out."
            )
        total += values.sum(axis=0)
    with np.errstate(over="ignore"):
        mean = (total / count).astype(np.float32)
    if not np.isfinite(mean).all():
        raise DataError(f"{path}: the mean of '{name}' is too large to be stored. Compute the vectors again.")
    return mean
