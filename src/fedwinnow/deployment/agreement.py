"""What a coordinator and its sites must agree on: the run and the task, as plain values that travel with a question."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

from fedwinnow.data.dataset import Dataset
from fedwinnow.deployment.foreign_text import for_others, one_line
from fedwinnow.deployment.remote_settings import refuse_files, without_files
from fedwinnow.errors import DataError, UsageError
from fedwinnow.experiment.prepare import Stage
from fedwinnow.experiment.settings import Experiment
from fedwinnow.experiment.summary import config_of
from fedwinnow.models.model import Shape
from fedwinnow.version import __version__

OF_THE_SCENE = ("data", "clients", "partition", "noise", "scene")  # settings that say what sites hold: they know it
FREE = ("rounds",)  # may be raised when a run is continued, and it stays the same run


def describe_run(stage: Stage, *, simulated: bool) -> dict[str, Any]:
    """Everything a site needs to answer; `simulated` says that the sites hold parts of one scene."""
    return {
        "fedwinnow": __version__,
        "experiment": settings_of(stage),
        "scene": stage.scene.hash if simulated else None,
        "clients": stage.sites.holdings.clients,
        "task": task_of(stage.scene.dataset),
    }


def settings_of(stage: Stage) -> dict[str, Any]:
    """The settings that travel: none of them may name a file, which is said here before it is said at every site."""
    settings = {key: value for key, value in config_of(stage).items() if key not in OF_THE_SCENE}
    if "model" in settings and not stage.method.own_models:
        settings["model"] = without_files(settings["model"])
    refuse_files(settings)
    return settings


def hello_of(stage: Stage, *, simulated: bool) -> dict[str, Any]:
    """The first words to a site: what is to be run, before anything is computed; no task where there is a scene."""
    return {
        "kind": "hello",
        "fedwinnow": __version__,
        "experiment": settings_of(stage),
        "task": None if simulated else task_of(stage.scene.dataset),
    }


def task_of(dataset: Dataset) -> dict[str, Any]:
    """What samples look like and which classes there are."""
    shape = Shape.of(dataset)
    plain = dataclasses.asdict(shape) | {"sample_shape": list(shape.sample_shape)}
    return {
        "shape": plain,
        "class_names": list(dataset.class_names),
        "mean": list(dataset.mean),
        "std": list(dataset.std),
    }


def identity(run: dict[str, Any]) -> str:
    """A name for the run, the same when it is continued."""
    settings = {key: value for key, value in run["experiment"].items() if key not in FREE}
    text = json.dumps(run | {"experiment": settings, "fedwinnow": ""}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def experiment_of(run: dict[str, Any], **more: Any) -> Experiment:
    """The settings that the coordinator sent, checked: no site reads a file because somebody else says so."""
    check_version(run.get("fedwinnow"))
    settings = run.get("experiment")
    if not isinstance(settings, dict):
        raise for_others(DataError("the coordinator sent no settings of a run."))
    known = {field.name for field in dataclasses.fields(Experiment)} - {*OF_THE_SCENE}
    if strange := [name for name in settings if name not in known]:
        raise for_others(
            DataError(f"the coordinator sent the setting '{one_line(strange[0], 80)}', which no site takes.")
        )
    refuse_files(settings)
    return Experiment(**settings, **more)


def check_version(theirs: Any) -> None:
    """Both sides must compute alike, so they must have the same version up to the last figure."""
    ours = __version__.split(".")[:2]
    if str(theirs).split(".")[:2] != ours:
        raise for_others(
            UsageError(
                f"the coordinator has fedwinnow {one_line(theirs, 40)}, this site {__version__}; allowed: the same "
                f"first two figures. Install the same version on both."
            )
        )
