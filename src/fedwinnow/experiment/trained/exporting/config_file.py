"""config.json of an export: which format, which model, how several models are joined, and what the check found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from fedwinnow import catalogue
from fedwinnow.data.input_form import InputForm
from fedwinnow.errors import DataError, UsageError
from fedwinnow.experiment.trained.exporting.bare_names import bare
from fedwinnow.experiment.trained.trained_model import TrainedModel
from fedwinnow.federation.method import OWN_METHOD, Method
from fedwinnow.files import Form, Maybe, json_of
from fedwinnow.models.make_model import is_own
from fedwinnow.models.model import Model
from fedwinnow.options import format_spec, parse_spec
from fedwinnow.version import __version__

FILE = "config.json"
MARK = "fedwinnow_export"  # the key by which an export is known
VERSION = 1
ONE = "one model"
MEAN_PROBABILITIES = "the logarithm of the mean of the models' probabilities"
MEAN_LOGITS = "the mean of the models' logits"
OWN_RULE = "a rule of the method's own"
FORM: Form = {
    MARK: int,
    "fedwinnow": str,
    "format": str,
    "file": str,
    "sha256": str,
    "model": str,
    "models": int,
    "join": str,
    "method": Maybe(str),
    "batch_norm": str,
    "input": dict,
}


def is_export(folder: Path) -> bool:
    """Whether a folder is an export."""
    try:
        found = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and MARK in found


def config_of(trained: TrainedModel, format: str, file: str, checked: dict[str, Any]) -> dict[str, Any]:
    """What is needed to build the model again, without the weights."""
    return {
        MARK: VERSION,
        "fedwinnow": __version__,
        "format": format,
        "file": file,
        "model": model_name(trained.spec),
        "models": len(trained.models),
        "join": joining_rule(trained),
        "method": method_name(trained.method),
        "batch_norm": "batch_statistics" if trained.by_batch else "stored",
        "input": trained.form.to_dict(),
        **checked,
    }


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of an export, checked."""
    path = folder / FILE
    found: dict[str, Any] = json_of(path, FORM)
    if found[MARK] != VERSION:
        raise DataError(f"{path}: version {found[MARK]}; allowed: {VERSION}. Use the fedwinnow that wrote it.")
    if found["format"] != "safetensors":
        raise UsageError(
            f"{folder}: an export in the format {found['format']}, which fedwinnow does not read; allowed: a run "
            "folder or an export in the format safetensors. README.md there says how other programs load it."
        )
    InputForm.from_dict(found["input"], str(path))
    return found


def model_name(spec: Any) -> str:
    """The model as a text: without the file of its first weights, which training has replaced, and without folders."""
    if isinstance(spec, dict):
        spec = catalogue.make("models", spec)
    if isinstance(spec, Model):
        spec = str(spec)
    if not isinstance(spec, str):
        return str(getattr(spec, "__name__", type(spec).__name__))
    if is_own(spec):
        return bare(spec)
    name, values = parse_spec(spec)
    return format_spec(name, {key: value for key, value in values.items() if key != "weights"})


def method_name(method: Method) -> str | None:
    """The method as a text that makes it again, or None for one that only its own file can make."""
    if type(method).__module__.startswith(OWN_METHOD) or method.name not in catalogue.entries("methods"):
        return None
    return bare(str(method))


def joining_rule(trained: TrainedModel) -> str:
    """How the logits of several models become one, in words; found by trying both usual rules."""
    count, classes = len(trained.models), trained.form.classes
    answers = torch.linspace(-2, 3, count * 2 * classes).sin().view(count, 2, classes)
    found = trained.method.joined(list(answers))
    if count == 1 and torch.equal(found, answers[0]):
        return ONE
    if torch.allclose(found, answers.softmax(2).mean(0).log(), atol=1e-5):
        return MEAN_PROBABILITIES
    if torch.allclose(found, answers.mean(0), atol=1e-5):
        return MEAN_LOGITS
    return OWN_RULE
