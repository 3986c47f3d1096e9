"""The agreement of a coordinator and its sites: the run and the task, as plain values sent with each question."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

from fedwinnow.data.dataset import Dataset
from fedwinnow.deployment.agreed_encoder import encoder_in
from fedwinnow.deployment.error_codes import for_others
from fedwinnow.deployment.foreign_text import one_line
from fedwinnow.deployment.remote_settings import names_weights, refuse_files, without_files
from fedwinnow.encoders.elsewhere import without_files as encoder_without_files
from fedwinnow.errors import DataError, UsageError
from fedwinnow.experiment.prepare import Stage
from fedwinnow.experiment.settings import Experiment
from fedwinnow.experiment.summary import config_of
from fedwinnow.federation.ledger import FROM_SEED, FROM_SYSTEM
from fedwinnow.models.model import Shape
from fedwinnow.version import __version__

OF_THE_SCENE = ("data", "clients", "partition", "noise", "scene")  # settings of the data, which is at the sites
NOT_SENT = (*OF_THE_SCENE, "start")  # the coordinator has the model that a run starts with, and sends its weights
FREE = ("rounds",)  # may change when a run is continued


def described(stage: Stage) -> dict[str, Any]:
    """What is agreed at the start and is then the same in every message: a site refuses one that departs from it.

    The version and the settings are always there; what else is there concerns some runs only, and a site that does
    not know it refuses it unless its policy names it.
    """
    start = other_start(stage)
    return {"fedwinnow": __version__, "experiment": settings_of(stage)} | ({"start": start} if start else {})


def other_start(stage: Stage) -> str | None:
    """What the first model is made from, if it is not the seed; sites cannot make it themselves."""
    if stage.experiment.start is not None:
        return "another run"
    return "a file of weights" if not stage.method.own_models and names_weights(stage.experiment.model) else None


def describe_run(stage: Stage, *, simulated: bool) -> dict[str, Any]:
    """Everything a site needs to answer; with `simulated` the sites hold parts of one scene."""
    return {
        **described(stage),
        "scene": stage.scene.hash if simulated else None,
        "clients": stage.sites.holdings.clients,
        "task": task_of(stage.scene.dataset),
        **encoder_in(stage.encoding, scaled=not simulated),
        **sums_in(stage.experiment, simulated=simulated),
    }


def settings_of(stage: Stage) -> dict[str, Any]:
    """The settings that are sent; an error if one names a file, before every site refuses it."""
    settings = {key: value for key, value in config_of(stage).items() if key not in NOT_SENT}
    if "model" in settings and not stage.method.own_models:
        settings["model"] = without_files(settings["model"])
    if settings.get("encoder") is not None:
        settings["encoder"] = encoder_without_files(settings["encoder"])
    refuse_files(settings)
    return settings


def hello_of(stage: Stage, *, simulated: bool, done: int = 0) -> dict[str, Any]:
    """The first message to a site: what is to be run, from which round on; without a task where there is a scene."""
    return {
        "kind": "hello",
        **described(stage),
        "done": done,
        "task": None if simulated else task_of(stage.scene.dataset),
        "columns": None if simulated else columns_hash(stage.scene.dataset),
        **encoder_in(stage.encoding, scaled=False),
        **sums_in(stage.experiment, simulated=simulated),
    }


def sums_in(experiment: Experiment, *, simulated: bool) -> dict[str, Any]:
    """Where the masks of secure sums come from: from the seed only where sites hold parts of one scene."""
    if not experiment.secure_sums:
        return {}
    return {"masks_from": FROM_SEED if simulated else FROM_SYSTEM}


def columns_hash(dataset: Dataset) -> str | None:
    """The hash of how the columns of a table become numbers, for `join --check`; None for other samples."""
    if not dataset.columns:
        return None
    text = json.dumps([column.as_table() for column in dataset.columns], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def task_of(dataset: Dataset) -> dict[str, Any]:
    """The shape of samples, their mean and deviation, and the classes."""
    shape = Shape.of(dataset)
    plain = dataclasses.asdict(shape) | {"sample_shape": list(shape.sample_shape)}
    return {
        "shape": plain,
        "class_names": list(dataset.class_names),
        "mean": list(dataset.mean),
        "std": list(dataset.std),
    }


def identity(run: dict[str, Any]) -> str:
    """The name of a run, which stays the same when the run is continued."""
    settings = {key: value for key, value in run["experiment"].items() if key not in FREE}
    kept = {key: value for key, value in run.items() if key != "start"}  # the first model is no part of the name
    text = json.dumps(kept | {"experiment": settings, "fedwinnow": ""}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def hello_name(hello: dict[str, Any]) -> str:
    """What stands for a run before its first round: what the coordinator says of it in its first message."""
    kept = {key: hello.get(key) for key in ("experiment", "task", "encoder", "masks_from")}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]


def experiment_of(run: dict[str, Any], **more: Any) -> Experiment:
    """The settings that the coordinator sent, checked; one that names a file is refused."""
    check_version(run.get("fedwinnow"))
    settings = run.get("experiment")
    if not isinstance(settings, dict):
        raise for_others(DataError("the coordinator sent no settings of a run."), "message")
    known = {field.name for field in dataclasses.fields(Experiment)} - {*NOT_SENT}
    if strange := [name for name in settings if name not in known]:
        raise for_others(
            DataError(f"the coordinator sent the setting '{one_line(strange[0], 80)}', which no site takes."),
            "settings",
        )
    refuse_files(settings)
    try:
        return Experiment(**settings, **more)
    except UsageError as problem:
        raise for_others(problem, "settings") from None


def check_version(theirs: Any) -> None:
    """Refuse a coordinator of another version: the first two figures must be the same, so that both compute alike."""
    ours = __version__.split(".")[:2]
    if str(theirs).split(".")[:2] != ours:
        raise for_others(
            UsageError(
                f"the coordinator has fedwinnow {one_line(theirs, 40)}, this site {__version__}; allowed: the same "
                f"first two figures. Install the same version on both."
            ),
            "version",
        )
