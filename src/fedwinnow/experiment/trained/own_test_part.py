"""Data that a run was trained on: a model is scored on the part of it that the run has held back."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

from fedwinnow import catalogue
from fedwinnow.data.load import understood
from fedwinnow.data.new_samples import NewSamples
from fedwinnow.errors import DataError, FedwinnowError, FedwinnowWarning
from fedwinnow.experiment.run_folder import RunFolder
from fedwinnow.experiment.trusted_and_public import measuring_rows
from fedwinnow.scene.scene import Scene


def is_training_data(run: RunFolder, spec: Any) -> bool:
    """Whether a spec or path names the data that the run was trained on."""
    source = ((run.read_json("scene.json") or {}).get("data") or {}).get("source")
    return same_data(source, spec)


def same_data(one: Any, other: Any) -> bool:
    """Whether two specs or paths name the same file or folder, or the same published data."""
    first, second = name_and_path(one), name_and_path(other)
    if first is None or second is None:
        return False
    if first[1] is None or second[1] is None:
        return first == second
    return os.path.samefile(first[1], second[1])


def name_and_path(spec: Any) -> tuple[str, Path | None] | None:
    """The name of a source and the file or folder that it reads; None if the spec cannot be read."""
    if not spec:
        return None
    try:
        asked = understood(spec)
        name, values = catalogue.split("data", asked) if isinstance(asked, str | dict) else (asked.name, vars(asked))
    except FedwinnowError:
        return None
    path = values.get("path")
    return name, Path(path) if path is not None and Path(path).exists() else None


def own_test_part(run: RunFolder) -> NewSamples | None:
    """The samples of the run's own data on which it was measured; None, with a warning, if they cannot be told."""
    try:
        dataset = Scene.load(run.path).dataset
        reason = "the run has held no test part back"
    except DataError as problem:
        dataset, reason = None, f"which of them were held back cannot be told ({str(problem).rstrip('.')})"
    if dataset is None or dataset.test is None:
        warnings.warn(
            f"the run was trained on this data, and {reason}: the model has seen these samples with their labels, so "
            "the scores are better than on new data.",
            FedwinnowWarning,
            stacklevel=4,
        )
        return None
    settings = run.settings()
    trusted, public = settings.get("trusted", 0.0), settings.get("public")
    rows = measuring_rows(trusted, public, len(dataset.test), settings["seed"], dataset.test.groups)
    part = dataset.test.subset(rows)
    true = part.labels if part.true is None and dataset.labels_trusted else part.true
    return NewSamples(dataset.name, part.features, part.ids, part.labels, true, part.sites)
