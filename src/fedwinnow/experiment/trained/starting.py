"""`--start RUN`: a run that begins with the trained model of another, on other data or with another method."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import torch

from fedwinnow.data.input_form import InputForm
from fedwinnow.errors import DataError, FedwinnowWarning, UsageError
from fedwinnow.experiment.encoding import Encoding
from fedwinnow.experiment.trained.trained_model import TrainedModel, load_model
from fedwinnow.mathematics.payload import FlatModel, Payload
from fedwinnow.models.features import through_head, undisturbed
from fedwinnow.models.model import Shape


def starting_weights(
    folder: str | Path, model: FlatModel, form: InputForm, shape: Shape, encoding: Encoding | None = None
) -> Payload:
    """The weights of another run's model, in the places where this run's model has them.

    If the classes differ, the last layer keeps its new values; any other difference is an error.
    """
    trained = load_model(Path(folder), device="cpu")
    if len(trained.models) > 1:
        raise UsageError(
            f"--start {folder}: the method '{trained.method.name}' of that run has {len(trained.models)} models; "
            "allowed: a run with one."
        )
    check_columns(trained, form)
    check_encoder(trained, encoding)
    payload = model.payload()
    there, here = trained.models[0].named(trained.models[0].payload()), model.named(payload)
    there |= trained.models[0].frozen
    new = head_of(model, shape) if trained.form.class_names != form.class_names else set()
    for name in here.keys() - new:
        if name not in there or there[name].shape != here[name].shape:
            found = "absent" if name not in there else tuple(there[name].shape)
            raise DataError(
                f"--start {folder}: its model does not fit: {name} is {found} there and {tuple(here[name].shape)} "
                f"here. A sample was {trained.form.described()}; now it is {form.described()}. Choose the same model "
                "(--model) and the same form of samples."
            )
    for name in model.frozen.keys() - new:
        if name not in there or not torch.equal(there[name].cpu(), model.frozen[name].cpu()):
            raise DataError(
                f"--start {folder}: {name} is frozen in this model and has another value in that run. Only what is "
                "trained is taken over; let the function that builds the model read frozen values from a file."
            )
    with torch.no_grad():
        for name in here.keys() - new:
            here[name].copy_(there[name])
    if new:
        warnings.warn(
            f"--start {folder}: its classes are not those of this data, so the last layer ({', '.join(sorted(new))}) "
            "begins anew; all other weights are taken over.",
            FedwinnowWarning,
            stacklevel=2,
        )
    return payload


def head_of(model: FlatModel, shape: Shape) -> set[str]:
    """The names of the tensors of the last linear layer."""
    with undisturbed(model.module):
        _, head, _ = through_head(model.module, shape.example().to(model.device))
    place = next(name for name, layer in model.module.named_modules() if layer is head)
    return {f"{place}.{name}" if place else name for name, _ in head.named_parameters()}


def check_encoder(trained: TrainedModel, encoding: Encoding | None) -> None:
    """Refuse a head of another encoder's features."""
    there, here = (None if one is None else one.facts() for one in (trained.encoding, encoding))
    if (there or {}).get("hash") != (here or {}).get("hash"):
        before, now = ("none" if one is None else f"{one['encoder']} ({one['hash'][:12]})" for one in (there, here))
        raise DataError(
            f"--start {trained.folder}: that model was trained with the encoder {before}; here it is {now}. Give the "
            "same --encoder with the same weights."
        )


def check_columns(trained: TrainedModel, form: InputForm) -> None:
    """Refuse other samples, and a table whose columns mean something else; say if they are standardised otherwise."""
    if trained.form.kind != form.kind or bool(trained.form.columns) != bool(form.columns):
        raise DataError(
            f"--start {trained.folder}: a sample of that model is {trained.form.described()}; here it is "
            f"{form.described()}."
        )
    before, now = ({column.title: column for column in one.columns} for one in (trained.form, form))
    differing = [
        name
        for name in {**before, **now}
        if name not in before
        or name not in now
        or replace(before[name], mean=0.0, std=1.0) != replace(now[name], mean=0.0, std=1.0)
    ]
    if differing or list(before) != list(now):
        shown = ", ".join(differing[:5]) or "their order"
        raise DataError(
            f"--start {trained.folder}: that model was trained on other columns ({shown}). Read this table as that one "
            "was read: `fedwinnow schema` writes how, and schema=FILE uses it."
        )
    if any((before[name].mean, before[name].std) != (now[name].mean, now[name].std) for name in now):
        warnings.warn(
            f"--start {trained.folder}: the columns are standardised by the means of this table, not by those of the "
            "table that the model was trained on; schema=FILE would keep them.",
            FedwinnowWarning,
            stacklevel=3,
        )
