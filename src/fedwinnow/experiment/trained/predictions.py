"""Predictions for new samples, and the file that they are written to."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedwinnow.data.dataset import Features
from fedwinnow.data.load import load_new
from fedwinnow.data.new_samples import NewSamples, of_values
from fedwinnow.errors import DataError
from fedwinnow.experiment.trained.trained_model import TrainedModel
from fedwinnow.files import write_text
from fedwinnow.randomness import Floats


@dataclass(frozen=True, eq=False)
class Predictions:
    """The probabilities of each class (column) for each sample (row)."""

    ids: NDArray[Any]
    class_names: tuple[str, ...]
    probabilities: Floats

    @property
    def classes(self) -> NDArray[np.str_]:
        """The likeliest class of each sample, by name."""
        found: NDArray[np.str_] = np.array(self.class_names)[self.probabilities.argmax(1)]
        return found

    def counts(self) -> dict[str, int]:
        """How many samples were given each class."""
        found = np.bincount(self.probabilities.argmax(1), minlength=len(self.class_names))
        return dict(zip(self.class_names, found.tolist(), strict=True))

    def write(self, path: Path, columns: Mapping[str, Sequence[str]] | None = None) -> None:
        """A CSV file: id, what `columns` add, class, its probability, and one column per class."""
        added = columns or {}
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["id", *added, "class", "probability", *(f"p_{name}" for name in self.class_names)])
        best = self.probabilities.max(1)
        for name, likeliest, chance, row, *more in zip(
            self.ids.tolist(),
            self.classes.tolist(),
            best.tolist(),
            self.probabilities.tolist(),
            *added.values(),
            strict=True,
        ):
            writer.writerow([name, *more, likeliest, f"{chance:.6f}", *(f"{value:.6f}" for value in row)])
        try:
            write_text(path, text.getvalue())
        except OSError as problem:
            raise DataError(f"--out {path}: cannot be written: {problem.strerror or problem}.") from None


def predict(model: TrainedModel, samples: NewSamples, temperature: float = 1.0) -> Predictions:
    """What the model says of these samples."""
    return Predictions(samples.ids, model.class_names, probabilities_of(model, samples.features, temperature))


def probabilities_of(model: TrainedModel, features: Features, temperature: float = 1.0) -> Floats:
    """The probabilities; a model that gives something else than finite numbers is refused."""
    return finite(model, model.probabilities(features, temperature))


def finite(model: TrainedModel, answers: Floats) -> Floats:
    """The answers, if all of them are finite numbers."""
    if not np.isfinite(answers).all():
        row = int(np.flatnonzero(~np.isfinite(answers).all(1))[0])
        raise DataError(f"{model.folder}: the model's answer to sample {row + 1} is not finite; its training diverged.")
    return answers


def asked_of(model: TrainedModel, x: Any, temperature: float = 1.0) -> Floats:
    """The probabilities for what a program has: a path or spec of data, a data frame, texts, an array, a tensor."""
    if model.form.kind == "images" and is_float_image(x):
        found: Floats = (answers_to_floats(model, x) / temperature).softmax(1).numpy()
        return found
    features = load_new(x, model.form).features if isinstance(x, str | Path) else of_values(x, model.form)
    return probabilities_of(model, features, temperature)


def logits_for(model: TrainedModel, x: Any) -> Floats:
    """The scores for what a program has, except a path."""
    if model.form.kind == "images" and is_float_image(x):
        return finite(model, answers_to_floats(model, x).numpy())
    return finite(model, model.logits(of_values(x, model.form)).double().numpy())


def answers_to_floats(model: TrainedModel, x: Any) -> Tensor:
    """The scores for images of floats, which have no stored form."""
    with torch.inference_mode():
        found: Tensor = model.module(torch.as_tensor(x)).double().cpu()
    return found


def is_float_image(x: Any) -> bool:
    """Whether images are floats from 0 to 1, as torch has them, and not bytes."""
    if isinstance(x, str | Path):
        return False
    return getattr(x, "is_floating_point", lambda: np.asarray(x).dtype.kind == "f")() is True
