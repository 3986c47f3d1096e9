"""The temperature by which a model's scores are divided before they become probabilities, fitted on labelled samples.

A temperature above 1 makes a model less sure, one below 1 surer; the likeliest class stays the same.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedwinnow.data.dataset import Labels, Rows
from fedwinnow.data.load import apportion, draw
from fedwinnow.errors import DataError, UsageError
from fedwinnow.experiment.trained.trained_model import TrainedModel
from fedwinnow.files import json_of, write_text
from fedwinnow.metrics.task import softmax
from fedwinnow.randomness import Floats

LabelKind = Literal["true", "given"]
FILE, VERSION = "calibration.json", 1
LEAST_SAMPLES = 100
LOWEST, HIGHEST = 0.01, 100.0  # a best temperature beyond these means that there is none
HALVINGS = 60


def halves(labels: Labels, classes: int, seed: int) -> tuple[Rows, Rows]:
    """Two halves of the samples, each with half of every class as nearly as possible; the first is the fitted one."""
    counts = np.bincount(labels, minlength=classes)
    first = draw(labels, apportion(counts, len(labels) // 2, 0), seed, "temperature")
    return first, np.setdiff1d(np.arange(len(labels)), first)


def fit_temperature(logits: Floats, labels: Labels) -> tuple[float | None, str]:
    """The temperature with the least mean log loss; None, and why, where the best one is not between 0.01 and 100.

    The loss is convex in b = 1 / temperature, and its slope is the mean over the samples of the expected score under
    softmax(b * scores) minus the score of the label. Where the slope changes its sign is found by halving.
    """
    own = np.take_along_axis(logits, labels[:, None], 1)[:, 0]

    def slope(factor: float) -> float:
        return float(((softmax(factor * logits) * logits).sum(1) - own).mean())

    low, high = math.log(1 / HIGHEST), math.log(1 / LOWEST)
    if slope(math.exp(low)) >= 0:
        return None, "the model's scores say nothing about the labels, so a larger temperature would always be better"
    if slope(math.exp(high)) <= 0:
        return None, "all or nearly all answers are right, so a smaller temperature would always be better"
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if slope(math.exp(middle)) < 0:
            low = middle
        else:
            high = middle
    return math.exp(-(low + high) / 2), ""


@dataclass(frozen=True)
class KeptTemperature:
    """A temperature in the run folder, and what it was fitted on."""

    temperature: float
    data: str
    samples: int
    labels: LabelKind
    site: str | None  # whose model it is for, where every site has its own


FORM = {
    "version": int,
    "models": {"*": {"temperature": float, "data": str, "samples": int, "labels": str}},
}


def fingerprint(model: TrainedModel) -> str:
    """sha256 of the weights that answer, so that a temperature is never used with another model."""
    digest = hashlib.sha256()
    for one in model.models:
        digest.update(one.weights.detach().cpu().numpy().tobytes())
    return digest.hexdigest()


def keep_temperature(model: TrainedModel, kept: KeptTemperature) -> Path:
    """Write the temperature to calibration.json in the run folder; it replaces an earlier one of the same site."""
    path = model.folder / FILE
    models = stored(path)
    models = {name: values for name, values in models.items() if values.get("site") != kept.site}
    models[fingerprint(model)] = asdict(kept)
    write_text(path, json.dumps({"version": VERSION, "models": models}, indent=1) + "\n")
    return path


def kept_temperature(model: TrainedModel) -> float:
    """The temperature that was kept for this model."""
    path = model.folder / FILE
    models = stored(path)
    if not (model.folder / "config.toml").exists():
        raise UsageError(f"{model.folder} is an export, which has no temperature; allowed: --calibrated with a run.")
    advice = f"Fit one: fedwinnow evaluate {model.folder} --data LABELLED --keep-temperature."
    if not models:
        raise UsageError(f"{model.folder} has no kept temperature, which calibrated probabilities need. {advice}")
    if (entry := models.get(fingerprint(model))) is None:
        raise UsageError(
            f"{path} has the temperature of another model: the run was continued since, or it is another site's. "
            f"{advice}"
        )
    found = float(entry["temperature"])
    if not LOWEST <= found <= HIGHEST:
        raise DataError(f"{path}: the temperature is {found}; allowed: {LOWEST} to {HIGHEST:g}. Restore the file.")
    return found


def stored(path: Path) -> dict[str, Any]:
    """The temperatures of calibration.json by the model they are for; empty if there is no file."""
    if not path.exists():
        return {}
    found = json_of(path, FORM)
    if found["version"] != VERSION:
        raise DataError(f"{path}: version {found['version']}; allowed: {VERSION}. Use the fedwinnow that wrote it.")
    models: dict[str, Any] = found["models"]
    return models
