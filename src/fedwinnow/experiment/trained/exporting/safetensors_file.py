"""model.safetensors: the weights by the names of their modules, and a TrainedModel from them again."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save_file
from torch import Tensor

from fedwinnow import catalogue
from fedwinnow.data.input_form import InputForm
from fedwinnow.device import choose_device
from fedwinnow.errors import DataError, UsageError
from fedwinnow.experiment.trained.exporting.config_file import FILE as CONFIG
from fedwinnow.experiment.trained.exporting.config_file import read_config
from fedwinnow.experiment.trained.exporting.input_description import FILE as DESCRIPTION
from fedwinnow.experiment.trained.exporting.input_description import described_input
from fedwinnow.experiment.trained.exporting.probe import Ask
from fedwinnow.experiment.trained.trained_model import TrainedModel
from fedwinnow.federation.host import use_batch_statistics
from fedwinnow.federation.method import find_method
from fedwinnow.files import json_of
from fedwinnow.mathematics.payload import FlatModel
from fedwinnow.models.make_model import is_own, make_model, names_file
from fedwinnow.models.model import Shape
from fedwinnow.options import parse_spec

FILE = "model.safetensors"


def names_of(models: tuple[FlatModel, ...]) -> dict[str, Tensor]:
    """The tensors by name; of several models each has its number before the name."""
    several = len(models) > 1
    return {
        f"models.{number}.{name}" if several else name: value
        for number, model in enumerate(models)
        for name, value in model.named({"weights": model.weights, "counters": model.counters}).items()
    }


def write(trained: TrainedModel, path: Path) -> None:
    """Write the weights."""
    tensors = {name: value.detach().cpu().contiguous().clone() for name, value in names_of(trained.models).items()}
    save_file(tensors, path, metadata={"format": "pt"})


def asked(folder: Path, model: Any = None) -> Ask:
    """The folder as a function, loaded as a user would load it; `model` is what a program gave to the run."""
    module = load_exported(folder, device="cpu", model=model).module

    def ask(x: Tensor) -> Tensor:
        with torch.inference_mode():
            found: Tensor = module(x)
        return found.float()

    return ask


def load_exported(
    folder: Path, *, site: str | None = None, device: str | None = None, model: Any = None
) -> TrainedModel:
    """The trained model in an export of this format; `model` is needed where the run's model was the user's own."""
    config = read_config(folder)
    if site is not None:
        raise UsageError(f"--site {site} was given, but {folder} is an export, which has one model; leave it out.")
    form = InputForm.from_dict(config["input"], str(folder / CONFIG))
    if json_of(folder / DESCRIPTION) != described_input(form):
        raise DataError(f"{folder / DESCRIPTION}: it does not fit {CONFIG}. Restore both, or export the run again.")
    tensors = read_tensors(folder / FILE, config["sha256"])
    spec = config["model"] if model is None else model
    shape = Shape(form.kind, form.sample_shape, form.classes, form.vocabulary)
    by_batch = config["batch_norm"] == "batch_statistics"
    models = tuple(new_model(spec, shape, by_batch, device, folder) for _ in range(config["models"]))
    fill(models, tensors, folder / FILE)
    method = find_method(config["method"] or "fedavg")
    return TrainedModel(folder, form, method, models, None, by_batch, spec)


def new_model(spec: Any, shape: Shape, by_batch: bool, device: str | None, folder: Path) -> FlatModel:
    """A model that waits for its weights."""
    if isinstance(spec, str) and not is_known(spec) and not names_file(spec):
        raise UsageError(
            f"{folder}: its model was the user's own ('{spec}'), and the folder has only its weights. Give the same "
            "module or function: fedwinnow.load(FOLDER, model=...)."
        )
    module = make_model(spec, shape)
    if by_batch:
        use_batch_statistics(module)
    return FlatModel(module, str(choose_device(device)))


def is_known(spec: str) -> bool:
    """Whether a text names a model of the catalogue."""
    return not is_own(spec) and parse_spec(spec)[0] in catalogue.entries("models")


def read_tensors(path: Path, sha256: str) -> dict[str, Tensor]:
    """The weights; a file that has changed since the export is refused."""
    try:
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != sha256:
            raise ValueError("it has changed since the export")
        return load(content)
    except (OSError, ValueError, SafetensorError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else problem
        raise DataError(f"{path}: {reason}. Restore the file, or export the run again.") from None


def fill(models: tuple[FlatModel, ...], tensors: dict[str, Tensor], path: Path) -> None:
    """Copy the weights into the models; every name and shape must fit."""
    places = names_of(models)
    odd = sorted(places.keys() ^ tensors.keys()) or [
        name for name, value in places.items() if value.shape != tensors[name].shape
    ]
    if odd:
        raise DataError(f"{path}: '{odd[0]}' does not fit the model of config.json. Export the run again.")
    with torch.no_grad():
        for name, value in places.items():
            value.copy_(tensors[name])
