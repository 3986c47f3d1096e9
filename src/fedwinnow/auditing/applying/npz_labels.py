"""Corrected labels in an npz file: the same arrays with y changed and two added."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwinnow.auditing.applying.changes import Change
from fedwinnow.auditing.applying.table_labels import GIVEN, SOURCE, names_of, places_of_changes, written_as
from fedwinnow.data.source_files import read_npz
from fedwinnow.errors import DataError

Arrays = dict[str, NDArray[Any]]


def as_bytes(arrays: Arrays) -> bytes:
    """The arrays as the content of a file."""
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]
    return stream.getvalue()


def corrected_npz(path: Path, changes: dict[str, Change]) -> bytes:
    """The file with corrected labels."""
    arrays = read_npz(path)
    if "y" not in arrays:
        raise DataError(f"{path} has no array 'y' any more; it has {', '.join(arrays)}.")
    labels = arrays["y"].reshape(-1)
    indexed = "class_names" in arrays and labels.dtype.kind != "U"
    class_names = [str(name) for name in arrays["class_names"].tolist()] if "class_names" in arrays else []
    if indexed and len(strange := np.flatnonzero((labels < 0) | (labels >= len(class_names)))):
        raise DataError(f"{path}, row {strange[0] + 1}: the label {labels[strange[0]]} is not a place in class_names.")
    texts = [class_names[int(label)] if indexed else text_of(label) for label in labels.tolist()]
    names = tuple(class_names) or names_of(texts, changes)
    ids = arrays["id"].tolist() if "id" in arrays else range(len(labels))
    places = {str(name): place for place, name in enumerate(ids)}
    wanted = places_of_changes(path, places, changes, texts, names)
    arrays.setdefault(GIVEN, arrays["y"].copy())
    sources = arrays.get(SOURCE, np.full(len(labels), "given")).astype("<U6")
    spelling, values = written_as(texts, names), dict(zip(texts, labels.tolist(), strict=True))
    corrected = labels.astype(f"<U{max(map(len, (*names, *texts)))}") if labels.dtype.kind == "U" else labels.copy()
    for place, change in wanted.items():
        corrected[place] = (
            class_names.index(change.label) if indexed else values.get(spelling[change.label], change.label)
        )
        sources[place] = change.source
    return as_bytes({**arrays, "y": corrected.reshape(arrays["y"].shape), SOURCE: sources})


def text_of(label: Any) -> str:
    """The name of a label's class: 1 for 1.0."""
    return str(int(label)) if isinstance(label, bool | float) else str(label)


def reversed_npz(path: Path) -> bytes:
    """The file with its first labels, without the two added arrays."""
    arrays = read_npz(path)
    if not {GIVEN, SOURCE, "y"} <= set(arrays):
        raise DataError(f"{path} has no arrays y, {GIVEN} and {SOURCE}, so nothing can be undone in it.")
    return as_bytes(
        {name: array for name, array in arrays.items() if name not in (GIVEN, SOURCE)} | {"y": arrays[GIVEN]}
    )
