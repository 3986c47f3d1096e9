"""Scenes on disk: scene.npz has the arrays, scene.json everything that a person may want to read."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwinnow.atomic import replacing, write_text
from fedwinnow.checked_reading import Form, Maybe, demand, json_of
from fedwinnow.data.archives import read_npz
from fedwinnow.data.dataset import Dataset
from fedwinnow.errors import DataError
from fedwinnow.folder_format import FORMAT, check_format
from fedwinnow.scene.holdings import Holdings
from fedwinnow.scene.scene import DataReference, Scene

FORM: Form = {
    "hash": str,
    "definition": str,
    "data": {
        **dict.fromkeys(("source", "name", "kind", "fingerprint", "source_hash"), str),
        "class_names": [str],
        "samples": int,
        "test_share": float,
    },
    "seed": int,
    "partition": str,
    "noise": str,
    "clients": [{"site": str, "kind": str, "nominal": Maybe(float)}],
}


def describe_scene(scene: Scene) -> dict[str, Any]:
    """Everything about a scene that is not an array; a number that is unknown is null."""
    sizes = scene.holdings.sizes
    return {
        "format": FORMAT,
        "hash": scene.hash,
        "definition": scene.definition,
        "data": dataclasses.asdict(scene.data),
        "seed": scene.seed,
        "partition": scene.partition,
        "noise": scene.noise,
        "nominal_rate": or_null(scene.nominal_rate),
        "realised_rate": or_null(scene.realised_rate),
        "transitions": None if scene.true is None else scene.transitions().tolist(),
        "clients": [
            {"site": name, "samples": size, "kind": kind, "nominal": or_null(nominal), "realised": or_null(realised)}
            for name, size, kind, nominal, realised in zip(
                scene.site_names, sizes.tolist(), scene.kinds, scene.nominal, scene.realised, strict=True
            )
        ],
    }


def or_null(number: float) -> float | None:
    """NaN is no JSON."""
    return None if math.isnan(number) else float(number)


def save_scene(scene: Scene, folder: Path) -> None:
    """Write both files; each is whole or absent."""
    save_description(scene, folder)
    save_arrays(scene, folder)


def save_description(scene: Scene, folder: Path) -> None:
    """Write scene.json, which says nothing about single samples."""
    try:
        write_text(folder / "scene.json", json.dumps(describe_scene(scene), indent=1) + "\n")
    except OSError as problem:
        raise DataError(f"{folder}: the scene cannot be written: {problem.strerror or problem}") from None


def save_arrays(scene: Scene, folder: Path) -> None:
    """Write scene.npz, which has the true labels."""
    arrays = {"rows": scene.holdings.rows, "offsets": scene.holdings.offsets, "given": scene.given}
    if scene.true is not None:
        arrays["true"] = scene.true
    try:
        with replacing(folder / "scene.npz") as stream:
            np.savez_compressed(stream, allow_pickle=False, **arrays)
    except (OSError, ValueError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) and problem.strerror else problem
        raise DataError(f"{folder}: the scene cannot be written: {reason}") from None


def load_scene(folder: Path) -> Scene:
    """Read both files back and check that they belong together."""
    if not (folder / "scene.json").is_file():
        raise DataError(
            f"{folder}: not the folder of a scene (it has no scene.json). Make one: fedwinnow scene make --out {folder}"
        )
    text = json_of(folder / "scene.json")
    check_format(folder / "scene.json", text.get("format"))
    demand(str(folder / "scene.json"), text, FORM)
    arrays = read_arrays(folder / "scene.npz", ("rows", "offsets", "given"), ("true",))
    try:
        reference = {**text["data"], "class_names": tuple(text["data"]["class_names"])}
        clients = text["clients"]
        scene = Scene(
            data=DataReference(**reference),
            seed=int(text["seed"]),
            partition=str(text["partition"]),
            noise=str(text["noise"]),
            definition=str(text["definition"]),
            holdings=Holdings(arrays["rows"], arrays["offsets"]),
            given=arrays["given"],
            true=arrays.get("true"),
            nominal=np.array([math.nan if c["nominal"] is None else c["nominal"] for c in clients], np.float64),
            kinds=tuple(str(client["kind"]) for client in clients),
            site_names=tuple(str(client["site"]) for client in clients),
        )
        same = text["hash"] == scene.hash and len(scene.nominal) == scene.clients
        same = same and int(scene.given.max(initial=0)) < scene.classes
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise DataError(f"{folder / 'scene.json'}: not a scene of ours ({problem!r}).") from None
    if not same:
        raise DataError(f"{folder}: scene.npz and scene.json do not belong together (their hashes differ).")
    return scene


def read_arrays(path: Path, needed: tuple[str, ...], optional: tuple[str, ...]) -> dict[str, NDArray[np.int64]]:
    """Arrays of whole numbers from an npz file."""
    arrays = read_npz(path, (*needed, *optional))
    if missing := [name for name in needed if name not in arrays]:
        raise DataError(f"{path}: the array '{missing[0]}' is missing; needed: {', '.join(needed)}.")
    for name, values in arrays.items():
        if values.ndim != 1 or not np.issubdtype(values.dtype, np.integer):
            raise DataError(
                f"{path}: '{name}' is {values.dtype} of shape {values.shape}; allowed: one row of integers."
            )
    return {name: values.astype(np.int64) for name, values in arrays.items()}


def export_scene(scene: Scene, path: Path) -> None:
    """Write the arrays `client`, `given` and, where known, `true`, aligned with the training rows."""
    if scene.holdings.overlap():
        raise DataError("in this scene several clients hold the same sample, so there is no one client per row.")
    columns = {"client": np.full(scene.data.samples, -1), "given": np.full(scene.data.samples, -1)}
    columns["client"][scene.holdings.rows] = scene.holdings.client
    columns["given"][scene.holdings.rows] = scene.given
    if scene.true is not None:
        columns["true"] = np.full(scene.data.samples, -1)
        columns["true"][scene.holdings.rows] = scene.true
    with replacing(path) as stream:
        if path.suffix == ".csv":
            table = np.stack(list(columns.values()), axis=1)
            np.savetxt(stream, table, fmt="%d", delimiter=",", header=",".join(columns), comments="")
        else:
            np.savez_compressed(stream, allow_pickle=False, **columns)


def import_scene(dataset: Dataset, path: Path, *, seed: int, test_share: float) -> Scene:
    """A scene made elsewhere: arrays `client` (-1: held by nobody) and `given`, aligned with the training rows."""
    arrays = read_arrays(path, ("client", "given"), ("true",))
    count = len(dataset.train)
    for name, values in arrays.items():
        if len(values) != count:
            raise DataError(f"{path}: '{name}' has {len(values)} values, but the data has {count} training rows.")
    client, held = arrays["client"], arrays["client"] >= 0
    if not held.any():
        raise DataError(f"{path}: no sample has a client (all are below 0).")
    for name in arrays.keys() - {"client"}:
        outside = np.flatnonzero(held & ((arrays[name] < 0) | (arrays[name] >= dataset.classes)))
        if len(outside):
            raise DataError(
                f"{path}: row {outside[0]} of '{name}' is {arrays[name][outside[0]]}; "
                f"allowed: 0 to {dataset.classes - 1}."
            )
    holdings = Holdings.from_clients(client, int(client.max()) + 1)
    if (holdings.sizes == 0).any():
        raise DataError(
            f"{path}: client {int(np.argmin(holdings.sizes))} holds nothing; number the clients 0, 1, 2, ..."
        )
    truth = arrays.get("true")
    if truth is None and (dataset.labels_trusted or dataset.train.true is not None):
        truth = dataset.train.labels if dataset.train.true is None else dataset.train.true
    return Scene(
        data=DataReference.of(dataset, test_share),
        seed=seed,
        partition="imported",
        noise="imported",
        definition=f"Made elsewhere and imported from {path.name}.",
        holdings=holdings,
        given=arrays["given"][holdings.rows],
        true=None if truth is None else truth[holdings.rows],
        nominal=np.full(holdings.clients, np.nan),
        kinds=("imported",) * holdings.clients,
        site_names=tuple(f"client-{number}" for number in range(holdings.clients)),
        _dataset=[dataset],
    )
