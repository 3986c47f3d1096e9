"""The trained model in a folder: of a run, or of an export of its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedwinnow.experiment.trained.exporting.config_file import is_export
from fedwinnow.experiment.trained.exporting.safetensors_file import load_exported
from fedwinnow.experiment.trained.trained_model import TrainedModel, load_model


def load_trained(
    folder: Path, *, site: str | None = None, device: str | None = None, model: Any = None, method: Any = None
) -> TrainedModel:
    """The trained model in a run folder, or in an export in the format safetensors; see `load_model`."""
    if is_export(folder):
        return load_exported(folder, site=site, device=device, model=model)
    return load_model(folder, site=site, device=device, model=model, method=method)
