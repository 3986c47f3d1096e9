"""Columns of free text: an encoder of the catalogue turns each text into a row of numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from fedwinnow import catalogue
from fedwinnow.errors import UsageError

Matrix = NDArray[np.float32]
KEPT: dict[str, Matrix] = {}  # what was encoded last: fitting and encoding need the same numbers


class ReadsTexts(Protocol):
    """An encoder with its weights in memory."""

    width: int
    hash: str
    batch: int
    encode: Callable[[Any], Matrix]


@cache
def opened(spec: str) -> ReadsTexts:
    """The encoder of a spec, if it reads texts."""
    encoder = catalogue.make("encoders", spec)
    if "texts" not in getattr(encoder, "kinds", ()):
        fitting = [name for name, entry in catalogue.entries("encoders").items() if "texts" in entry.facts["kinds"]]
        raise UsageError(f"notes_encoder={spec} was given, which does not read texts; allowed: {', '.join(fitting)}.")
    return cast(ReadsTexts, cast(Any, encoder).open_for_texts())


def vectors_of(texts: Sequence[str], spec: str) -> Matrix:
    """One row of numbers per text."""
    encoder = opened(spec)
    content = "\0".join(texts).encode("utf-8", "surrogatepass")
    key = f"{encoder.hash}/{len(texts)}/{hashlib.sha256(content).hexdigest()}"
    if key not in KEPT:
        found = np.empty((len(texts), encoder.width), np.float32)
        listed = list(texts)
        for start in range(0, len(listed), encoder.batch):
            found[start : start + encoder.batch] = encoder.encode(listed[start : start + encoder.batch])
        KEPT.clear()
        KEPT[key] = found
    return KEPT[key]
