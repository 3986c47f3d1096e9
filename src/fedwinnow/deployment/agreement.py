"""The agreement of a coordinator and its sites: the run and the task, as plain values sent with each question."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

from fedwinnow.data.dataset import Dataset
from fedwinnow.deployment.agreed_encoder import encoder_in
from fedwinnow.deployment.foreign_text import for_others, one_line
from fedwinnow.deployment.remote_settings import refuse_files, without_files
from fedwinnow.errors import DataError, UsageError
from fedwinnow.experiment.prepare import Stage
from fedwinnow.experiment.settings import Experiment
from fedwinnow.experiment.summary import config_of
from fedwinnow.models.model import Shape
from fedwinnow.version import __version__

OF_THE_SCENE = ("data", "clients", "partition", "noise", "scene")  # settings of the data, which is at the sites
NOT_SENT = (*OF_THE_SCENE, "start")  # the coordinator has the model that a run starts with, and sends its weights
FREE = ("rounds",)  # may change when a run is continued


def describe_run(stage: Stage, *, simulated: bool) -> dict[str, Any]:
    """Everything a site needs to answer; with `simulated` the sites hold parts of one scene."""
    return {
        "fedwinnow": __version__,
        "experiment": settings_of(stage),
        "scene": stage.scene.hash if simulated else None,
        "clients": stage.sites.holdings.clients,
        "task": task_of(stage.scene.dataset),
        **encoder_in(stage.encoding, scaled=not simulated),
    }


def settings_of(stage: Stage) -> dict[str, Any]:
    """The settings that are sent; an error if one names a file, before every site refuses it."""
    settings = {key: value for key, value in config_of(stage).items() if key not in NOT_SENT}
    if "model" in settings and not stage.method.own_models:
        settings["model"] = without_files(settings["model"])
    refuse_files(settings)
    return settings


def hello_of(stage: Stage, *, simulated: bool) -> dict[str, Any]:
    """The first message to a site: what is to be run; without a task where there is a scene."""
    return {
        "kind": "hello",
        "fedwinnow": __version__,
        "experiment": settings_of(stage),
        "task": None if simulated else task_of(stage.scene.dataset),
        **encoder_in(stage.encoding, scaled=False),
    }


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
    text = json.dumps(run | {"experiment": settings, "fedwinnow": ""}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def experiment_of(run: dict[str, Any], **more: Any) -> Experiment:
    """The settings that the coordinator sent, checked; one that names a file is refused."""
    check_version(run.get("fedwinnow"))
    settings = run.get("experiment")
    if not isinstance(settings, dict):
        raise for_others(DataError("the coordinator sent no settings of a run."))
    known = {field.name for field in dataclasses.fields(Experiment)} - {*NOT_SENT}
    if strange := [name for name in settings if name not in known]:
        raise for_others(
            DataError(f"the coordinator sent the setting '{one_line(strange[0], 80)}', which no site takes.")
        )
    refuse_files(settings)
    return Experiment(**settings, **more)


def check_version(theirs: Any) -> None:
    """Refuse a coordinator of another version: the first two figures must be the same, so that both compute alike."""
    ours = __version__.split(".")[:2]
    if str(theirs).split(".")[:2] != ours:
        raise for_others(
            UsageError(
                f"the coordinator has fedwinnow {one_line(theirs, 40)}, this site {__version__}; allowed: the same "
                f"first two figures. Install the same version on both."
            )
        )
