"""Tables of tests as they are loaded."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np

from fedwinnow.data.load import load


def load_csv(path: Path, **options):
    return load({"kind": "csv", "path": path, "label": "label", **options})


def silent(path: Path, **options):
    """The same, and every warning is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return load_csv(path, **options)


def rows(dataset, part: str = "train") -> list[list[float]]:
    samples = getattr(dataset, part)
    return samples.features.take(np.arange(len(samples))).tolist()
