"""The IDX format of MNIST: a short header and unsigned bytes."""

from __future__ import annotations

import gzip
import zlib
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedwinnow.errors import DataError

UNSIGNED_BYTES = 8


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """The array in an IDX file, packed with gzip or not."""
    try:
        raw = path.read_bytes()
        raw = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except (OSError, EOFError, zlib.error) as problem:
        raise DataError(f"{path} cannot be read ({problem}). Get the file again from its publisher.") from problem
    start = 4 + 4 * dimensions
    if len(raw) < start or raw[:4] != bytes([0, 0, UNSIGNED_BYTES, dimensions]):
        raise DataError(
            f"{path} is not an IDX file of unsigned bytes with {dimensions} dimensions: it begins {raw[:4]!r}."
        )
    shape = tuple(int(size) for size in np.frombuffer(raw, ">u4", count=dimensions, offset=4))
    if len(raw) - start != prod(shape):
        raise DataError(f"{path} announces {prod(shape)} values and holds {len(raw) - start}. Get the file again.")
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)
