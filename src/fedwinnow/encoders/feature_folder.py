"""A folder of features: what an encoder made of a data set, with ids, sites and labels, for other programs and us."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwinnow.data.dataset import Dataset, Rows, Samples
from fedwinnow.data.sources.feature_files import ABOUT, FORMAT
from fedwinnow.encoders.encoded import Encoded
from fedwinnow.encoders.encoder import views_in
from fedwinnow.encoders.make_encoder import DataEncoder, find_encoder
from fedwinnow.errors import UsageError
from fedwinnow.files import make_folder, replacing, write_text

PIECE = 4096  # rows that are written at once


def write_features(dataset: Dataset, spec: Any, folder: Path) -> dict[str, Any]:
    """Encode a data set into a folder, and return what encoder.json says; a folder of something else is refused."""
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not (folder / ABOUT).exists())):
        raise UsageError(f"--out {folder} is there already and holds no features. Choose another folder.")
    encoder = find_encoder(spec)
    if views_in(encoder):
        raise UsageError(
            f"--encoder {encoder} was given, but a folder of features has one row per sample and no views; leave "
            f"views={views_in(encoder)} out."
        )
    data_encoder = DataEncoder.for_data(encoder, dataset)
    parts = {"": dataset.train} | ({} if dataset.test is None else {"_test": dataset.test})
    features = {ending: data_encoder.features(samples) for ending, samples in parts.items()}
    make_folder(folder)
    (folder / ABOUT).unlink(missing_ok=True)  # it comes last: without it the folder is not complete
    for path in folder.glob("*.npy"):
        path.unlink()
    for name, array in columns_of(dataset).items():
        with replacing(folder / f"{name}.npy") as stream:
            np.save(stream, array, allow_pickle=False)
    for ending, rows in features.items():
        write_rows(folder / f"x{ending}.npy", rows)
    about = {
        "format": FORMAT,
        "encoder": str(data_encoder.encoder),
        "hash": data_encoder.opened.hash,
        "width": data_encoder.opened.width,
        "data": dataset.source or dataset.name,
        "samples": len(dataset.train),
        "test_samples": 0 if dataset.test is None else len(dataset.test),
    }
    write_text(folder / ABOUT, json.dumps(about, indent=1) + "\n")
    return about


def columns_of(dataset: Dataset) -> dict[str, NDArray[Any]]:
    """Everything beside the features, in the order of the rows."""
    train, test = dataset.train, dataset.test
    found: dict[str, NDArray[Any] | None] = {
        "y": train.labels,
        "id": train.ids,
        "site": train.sites,
        "group": train.groups,
        "true": train.true,
        "y_test": None if test is None else right_labels(test),
        "class_names": np.array(dataset.class_names, dtype=np.str_),
    }
    return {name: array for name, array in found.items() if array is not None}


def right_labels(samples: Samples) -> NDArray[Any]:
    """The labels that a test part is measured by."""
    return samples.labels if samples.true is None else samples.true


def write_rows(path: Path, features: Encoded) -> None:
    """Write rows of half precision piece by piece."""
    with replacing(path) as stream:
        header = {"descr": "<f2", "fortran_order": False, "shape": (len(features), *features.shape)}
        np.lib.format.write_array_header_1_0(stream, header)
        for rows in pieces(len(features)):
            stream.write(features.raw(rows).astype("<f2").tobytes())


def pieces(count: int) -> Iterator[Rows]:
    """All rows, a piece at a time."""
    for start in range(0, count, PIECE):
        yield np.arange(start, min(start + PIECE, count))
