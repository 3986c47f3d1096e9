"""The trained model in a folder: of a run, or of an export of its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedwinnow.errors import UsageError
from fedwinnow.experiment.trained.exporting.config_file import is_export
from fedwinnow.experiment.trained.exporting.safetensors_file import load_exported
from fedwinnow.experiment.trained.trained_model import TrainedModel, load_model


def load_trained(
    folder: Path,
    *,
    site: str | None = None,
    device: str | None = None,
    model: Any = None,
    method: Any = None,
    encoder: Any = None,
) -> TrainedModel:
    """The trained model in a run folder, or in an export in the format safetensors; see `load_model`."""
    if is_export(folder):
        if encoder is not None:
            raise UsageError(f"--encoder {encoder} was given, but the export in {folder} has no encoder; leave it out.")
        return load_exported(folder, site=site, device=device, model=model)
    return load_model(folder, site=site, device=device, model=model, method=method, encoder=encoder)
