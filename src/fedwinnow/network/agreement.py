"""What a coordinator and its sites must agree on: the run and the task, as plain values that travel with a question."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

from fedwinnow.data.dataset import Dataset
from fedwinnow.errors import DataError, UsageError
from fedwinnow.experiment.prepare import Stage
from fedwinnow.experiment.settings import Experiment
from fedwinnow.experiment.summary import config_of
from fedwinnow.models.shape import Shape
from fedwinnow.version import __version__

OF_THE_SCENE = ("data", "clients", "partition", "noise", "scene")  # settings that say what sites hold: they know it
FREE = ("rounds",)  # may be raised when a run is continued, and it stays the same run


def describe_run(stage: Stage, *, simulated: bool) -> dict[str, Any]:
    """Everything a site needs to answer; `simulated` says that the sites hold parts of one scene."""
    config = {key: value for key, value in config_of(stage).items() if key not in OF_THE_SCENE}
    return {
        "fedwinnow": __version__,
        "experiment": config,
        "scene": stage.scene.hash if simulated else None,
        "clients": stage.sites.holdings.clients,
        "task": task_of(stage.scene.dataset),
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
        raise DataError("the coordinator sent no settings of a run.")
    for text in texts_in(settings):
        if ".py" in text or "/" in text or "\\" in text:
            raise UsageError(
                f"the coordinator asks for {text!r}, a file. A site runs no code that others name; install the method "
                f"or model as a package on every machine (docs/own-method.md) and give its name."
            )
    try:
        return Experiment(**settings, **more)
    except TypeError as problem:
        raise DataError(f"the coordinator sent settings that are not known here ({problem}).") from None


def texts_in(value: Any) -> list[str]:
    """All texts in a table, however deep."""
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for one in inner for text in texts_in(one)]


def check_version(theirs: Any) -> None:
    """Both sides must compute alike, so they must have the same version up to the last figure."""
    ours = __version__.split(".")[:2]
    if str(theirs).split(".")[:2] != ours:
        raise UsageError(
            f"the coordinator has fedwinnow {theirs}, this site {__version__}; allowed: the same first two figures. "
            f"Install the same version on both."
        )
