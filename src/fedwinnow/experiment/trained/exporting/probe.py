"""Questions to an exported file whose right answers are known: the answers of the run's own model.

The run's model gets its samples the way it was trained (`TrainedModel.logits`), the exported file gets what a user of
the file would give, so a mistake in the preprocessing shows as well as one in the weights. No sample of anybody's data
is among the questions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedwinnow.data.column import Column
from fedwinnow.data.dataset import Features, Resident
from fedwinnow.data.input_form import InputForm
from fedwinnow.data.new_samples import raw_columns
from fedwinnow.data.schema import TableSchema, encode_rows
from fedwinnow.data.table_reading import TextTable
from fedwinnow.errors import DataError, RunError
from fedwinnow.experiment.trained.trained_model import TrainedModel
from fedwinnow.randomness import Floats, uniforms

BOUND = 1e-4  # the largest difference between two logits that counts as rounding, for logits up to 1
SAMPLES = 48  # one batch of the run's model, because some models look at the whole batch
MOST_TEXTS = 400
TEXT = "no acute finding, small lesion of the left lobe, control advised after three months"
UNKNOWN = "a category that training did not have"

Ask = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Probe:
    """A batch for the exported file, the right answers, and the same for its first few samples alone."""

    batch: Tensor
    expected: Tensor
    few: Tensor
    expected_of_few: Tensor

    @property
    def bound(self) -> float:
        """The largest difference of a logit that is allowed."""
        return BOUND * max(1.0, float(self.expected.abs().max()))

    def difference(self, ask: Ask) -> float:
        """The largest difference between the file's logits and the right ones; infinite if a logit is not finite."""
        pairs = ((ask(self.batch), self.expected), (ask(self.few), self.expected_of_few))
        largest = 0.0
        for found, wanted in pairs:
            if found.shape != wanted.shape:
                return math.inf
            largest = max(largest, float((found - wanted).abs().nan_to_num(math.inf, math.inf).max()))
        return largest

    def check(self, ask: Ask, file: str) -> float:
        """The largest difference; refused above the bound."""
        found = self.difference(ask)
        if not found <= self.bound:
            raise RunError(
                f"{file} does not answer like the model of the run: its logits differ by up to {found:.3g}, allowed: "
                f"{self.bound:.3g}. Nothing was exported; choose another format."
            )
        return found


def make_probe(trained: TrainedModel) -> Probe:
    """The questions for a model, and what it answers itself."""
    batch, features = questions(trained.form)
    few = 2 if trained.by_batch else 1
    expected = trained.logits(features)
    if not bool(expected.isfinite().all()):
        raise DataError(f"{trained.folder}: the model's answers are not finite; its training diverged.")
    return Probe(batch, expected, batch[:few], trained.logits(features.subset(np.arange(few))))


def questions(form: InputForm) -> tuple[Tensor, Features]:
    """The same samples twice: as the exported file takes them, and as the run stores its own."""
    if form.columns:
        cells = {column.title: cells_of(place, column) for place, column in enumerate(form.columns)}
        table = TextTable(Path("probe"), cells)
        stored = Resident(encode_rows(table, TableSchema(form.columns, form.class_names)))
        return torch.from_numpy(raw_columns(table, form)), stored
    kinds: dict[str, Callable[[InputForm], NDArray[Any]]] = {"images": images, "rows": rows, "tokens": tokens}
    array = kinds[form.kind](form)
    asked = array.astype(np.int64) if form.kind == "tokens" else array
    return torch.from_numpy(asked), Resident(array)


def draws(purpose: str, *shape: int) -> Floats:
    """Numbers between 0 and 1 that are always the same."""
    return uniforms(0, f"probe {purpose}", 0, np.arange(math.prod(shape))).reshape(shape)


def cells_of(place: int, column: Column) -> list[str]:
    """A column as a CSV file has it.

    Every category is in it, an unknown one, missing values, and numbers around the mean and far from it.
    """
    chance = draws(f"column {place}", SAMPLES)
    gone = draws(f"missing {place}", SAMPLES) < 0.15
    if column.kind == "numeric":
        found = list(map(repr, (column.mean + column.std * (8 * chance - 4)).tolist()))
    elif column.kind == "text":
        found = [" ".join(TEXT.split()[: int(share * 12)]) for share in chance.tolist()]
    else:
        names = [*column.categories, UNKNOWN]  # position -1 is the last
        found = [names[int(value)] for value in (np.floor(chance * (len(column.categories) + 1)) - 1).tolist()]
    return ["" if is_gone else cell for cell, is_gone in zip(found, gone.tolist(), strict=True)]


def images(form: InputForm) -> NDArray[np.uint8]:
    """Noise of different strength on different greys; pure noise would look alike to a network that takes means."""
    grey, strength = draws("grey", SAMPLES, 1, 1, 1), draws("strength", SAMPLES, 1, 1, 1)
    noise = draws("noise", SAMPLES, *form.sample_shape)
    return (255 * (strength * noise + (1 - strength) * grey)).round().astype(np.uint8)


def rows(form: InputForm) -> NDArray[np.float32]:
    """Numbers from -4 to 4."""
    return (8 * draws("rows", SAMPLES, *form.sample_shape) - 4).astype(np.float32)


def tokens(form: InputForm) -> NDArray[np.int32]:
    """Every token once, as far as there is room, in texts of many lengths; one text is padding only."""
    length = form.sample_shape[0]
    count = min(MOST_TEXTS // 2, max(SAMPLES // 2, math.ceil(form.vocabulary / length)))
    order = np.argsort(draws("order", form.vocabulary))
    full = order[np.arange(count * length) % form.vocabulary].reshape(count, length)
    short = full * (np.arange(length) < 1 + length * draws("length", count, 1))
    return np.concatenate([full, short, np.zeros((1, length))]).astype(np.int32)
