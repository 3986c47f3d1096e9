"""`audit --encoder auto`, the default: of the installed encoders and none, what tells the given labels best.

A logistic regression is fitted on a few hundred samples, three times on two thirds, and scored on the third that it has
not seen. The samples of all sites are looked at together, so this is for an audit on one machine.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedwinnow import catalogue
from fedwinnow.data.dataset import Dataset
from fedwinnow.encoders.encoder import Matrix, kinds_of
from fedwinnow.encoders.head_input import Scaling, Sums
from fedwinnow.encoders.make_encoder import DataEncoder
from fedwinnow.errors import UsageError, how_to_get
from fedwinnow.experiment.encoding import views_asked
from fedwinnow.experiment.settings import Experiment
from fedwinnow.federation.method import find_method
from fedwinnow.models.make_model import in_turn, is_own
from fedwinnow.options import Part, parse_spec
from fedwinnow.randomness import Integers, uniforms
from fedwinnow.scene.scene import Scene

AUTO = "auto"
SAMPLES, FOLDS = 500, 3
SMALLEST = 16  # pixels; smaller images have nothing that an encoder of photographs knows
STRENGTH = 0.03  # of the regression: 1 / (STRENGTH * samples) times half the squared weights is added to the loss
LARGEST_SIDE = 32  # pixels of the images that a regression without encoder sees
COLUMNS = 1024  # to which token ids are counted without encoder
STEPS = 60


@dataclass(frozen=True)
class Choice:
    """The encoder that was chosen, and why."""

    encoder: str | None
    losses: dict[str, float]  # held-out log loss by encoder, "none" among them
    reason: str

    def as_value(self) -> dict[str, Any]:
        """The values that an audit writes down."""
        return {"chosen": self.encoder, "losses": self.losses, "reason": self.reason}


def choose_for(experiment: Experiment, scene: Scene) -> Choice:
    """The encoder of an audit with these settings; none where they ask for something that an encoder would prevent."""
    reason = ruled_out(experiment)
    if reason is not None:
        return Choice(None, {}, reason)
    return choose_encoder(scene.dataset, scene.holdings.rows, scene.given, experiment.seed)


def ruled_out(experiment: Experiment) -> str | None:
    """Why these settings want no encoder; None if one may be chosen."""
    for model in in_turn(experiment.model) if experiment.model is not None else ():
        if not is_head(model):
            return f"the model {name_of(model)} was asked for, which takes the samples themselves"
    if experiment.start is not None:
        return "the training starts from weights that were made without one"
    method = find_method(experiment.method)
    if views_asked(method, experiment.views):
        return "random views of the samples are asked for, which an encoder does not see"
    return None


def is_head(model: Any) -> bool:
    """Whether a model of the catalogue takes rows of numbers, as encoders give them."""
    if isinstance(model, Part):
        return "rows" in getattr(model, "kinds", ())
    kind = model.get("kind") if isinstance(model, dict) else model
    if not isinstance(kind, str) or is_own(kind):
        return False  # a module or a function of the user's, made for the samples
    entry = catalogue.entries("models").get(parse_spec(kind)[0])
    return entry is None or "rows" in entry.facts.get("kinds", ())  # what is unknown is refused later


def name_of(model: Any) -> str:
    """A model in a sentence."""
    if isinstance(model, dict):
        return str(model.get("kind"))
    return str(model) if isinstance(model, str | Part) else str(getattr(model, "__name__", type(model).__name__))


def choose_encoder(dataset: Dataset, rows: Integers, given: Integers, seed: int) -> Choice:
    """The best of the encoders that are installed and fit, on the given labels of these samples."""
    names, missing = fitting_encoders(dataset)
    if not names:
        return Choice(None, {}, reason_for_none(dataset, missing))
    # In random order: labels often come in turn, and every third sample would then be of one class.
    held = np.argsort(uniforms(seed, "encoder choice", 0, np.arange(len(given))), kind="stable")
    held = held[given[held] >= 0][:SAMPLES]  # of those that have a label
    samples = dataset.train.subset(rows[held])
    losses = {"none": held_out_loss(without_encoder(dataset, rows[held]), given[held], dataset.classes)}
    unfit = {}
    for name in names:
        try:
            features = DataEncoder.for_data(name, dataset).features(samples)
        except UsageError as problem:  # images of four channels, for example
            unfit[name] = str(problem)
            continue
        losses[name] = held_out_loss(features.raw(np.arange(len(samples))), given[held], dataset.classes)
    best = min(losses, key=lambda name: (losses[name], name != "none"))
    compared = ", ".join(f"{name} {loss:.3f}" for name, loss in losses.items())
    reason = f"held-out log loss of the given labels, on {len(held)} samples: {compared}; smaller is better"
    if len(losses) == 1:
        reason = "no installed encoder takes these samples"
    reason += "".join(f"; {problem.rstrip('.')}" for problem in unfit.values()) + not_installed(missing)
    return Choice(None if best == "none" else best, {name: round(loss, 6) for name, loss in losses.items()}, reason)


def fitting_encoders(dataset: Dataset) -> tuple[list[str], list[str]]:
    """The encoders for this data that need no file: those that are installed, and those whose package is missing."""
    found: list[str] = []
    missing: list[str] = []
    if dataset.kind == "rows" or is_small(dataset):
        return found, missing
    for name, entry in catalogue.entries("encoders").items():
        package = entry.facts.get("package", "")
        complete = all(option.default != "required" for option in entry.options)
        if complete and set(kinds_of(dataset)) & set(entry.facts["kinds"]):
            installed = not package or importlib.util.find_spec(package) is not None
            (found if installed else missing).append(name)
    return found, missing


def is_small(dataset: Dataset) -> bool:
    """Whether images are so small that an encoder of photographs knows nothing in them."""
    return dataset.kind == "images" and min(dataset.sample_shape[:2]) < SMALLEST


def reason_for_none(dataset: Dataset, missing: list[str]) -> str:
    """Why no encoder was tried."""
    if dataset.kind == "rows":
        return "the samples are rows of numbers, which need none"
    if is_small(dataset):
        return f"the images have fewer than {SMALLEST} pixels a side"
    return f"no installed encoder is for {' and '.join(kinds_of(dataset))}{not_installed(missing)}"


def not_installed(missing: list[str]) -> str:
    """Which encoders could be installed."""
    if not missing:
        return ""
    return f"; not installed: {', '.join(missing)} ({how_to_get('encoders')})"


def without_encoder(dataset: Dataset, rows: Integers) -> Matrix:
    """The samples as a regression sees them without encoder: small images, rows, or counts of tokens."""
    stored = dataset.train.features.take(rows)
    if dataset.kind == "tokens":
        return np.stack([np.bincount(ids % COLUMNS, minlength=COLUMNS) for ids in stored]).astype(np.float32)
    if dataset.kind == "images" and max(stored.shape[1:3]) > LARGEST_SIDE:
        from fedwinnow.encoders.pixels import scaled

        stored = scaled(stored, LARGEST_SIDE, None).numpy()
    return stored.reshape(len(stored), -1).astype(np.float32)


def held_out_loss(features: Matrix, given: Integers, classes: int) -> float:
    """The mean log loss of samples that a regression has not seen, every sample once; they come in random order."""
    scaling = Scaling.fitted("std_l2", [Sums.of([features], features.shape[1], "std_l2")], features.shape[1])
    inputs, fold = scaling.applied(features), np.arange(len(given)) % FOLDS
    losses = [
        loss_on(inputs[fold != number], given[fold != number], inputs[fold == number], given[fold == number], classes)
        for number in range(min(FOLDS, len(given)))
        if (fold != number).any()
    ]
    return float(np.concatenate(losses).mean()) if losses else float("inf")


def loss_on(x: Matrix, y: Integers, held_x: Matrix, held_y: Integers, classes: int) -> np.ndarray[Any, Any]:
    """The log losses of held-out samples under a logistic regression that was fitted on the others."""
    import torch
    from torch.nn import functional

    inputs, target = torch.from_numpy(x).double(), torch.from_numpy(y)
    weight = torch.zeros(classes, x.shape[1], dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(classes, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=STEPS, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(inputs @ weight.T + bias, target)
        loss = loss + weight.square().sum() / (2 * STRENGTH * len(y))
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        scores = torch.from_numpy(held_x).double() @ weight.T + bias
        return functional.cross_entropy(scores, torch.from_numpy(held_y), reduction="none").numpy()
