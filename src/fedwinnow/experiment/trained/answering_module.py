"""The trained model as one torch module: from what a user has to one score per class.

Everything between is inside the module (standardising, one column per category, pixels, several models joined), so
that a file that is exported from it needs nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedwinnow.data.column import Column
from fedwinnow.data.input_form import InputForm
from fedwinnow.data.new_samples import is_texts as are_texts
from fedwinnow.data.new_samples import of_texts, raw_columns, text_table
from fedwinnow.encoders.head_input import LENGTH, Scaling
from fedwinnow.errors import DataError
from fedwinnow.federation.method import Method


class FromImages(nn.Module):
    """uint8 images (n, height, width, channels), or float images (n, channels, height, width) from 0 to 1."""

    mean: Tensor
    std: Tensor

    def __init__(self, form: InputForm) -> None:
        super().__init__()
        self.sample_shape = form.sample_shape
        channels = form.sample_shape[2]
        self.register_buffer("mean", torch.tensor(form.mean or (0.0,) * channels))
        self.register_buffer("std", torch.tensor(form.std or (1.0,) * channels))

    def forward(self, x: Tensor) -> Tensor:
        height, width, channels = self.sample_shape
        if x.dim() == 3 and channels == 1:  # grey images without an axis of channels
            x = x[:, None] if x.is_floating_point() else x[..., None]
        if x.is_floating_point():
            allowed, pixels = (channels, height, width), x.float()
            scale, shift = 1.0 / self.std, -self.mean / self.std
            scaled = (scale.view(-1, 1, 1), shift.view(-1, 1, 1))
        else:
            allowed, pixels = (height, width, channels), x.float()
            scaled = (1.0 / (255.0 * self.std), -self.mean / self.std)
        refuse_other_shape(x, allowed)
        found = torch.addcmul(scaled[1], pixels, scaled[0])
        return found if x.is_floating_point() else found.permute(0, 3, 1, 2)


class FromColumns(nn.Module):
    """The columns of a table in float64 (n, columns): numbers as they are, a category as its position, NaN if missing.

    A free text is as many columns as its encoder gives numbers; of ordered categories the position is a number. Each
    column of the model's input is one of three: a standardised number, "the value is missing", "it is this category".
    A category that training did not have, -1, is none of them.
    """

    source: Tensor
    numeric: Tensor
    missing: Tensor
    centre: Tensor
    spread: Tensor

    def __init__(self, columns: Sequence[Column]) -> None:
        super().__init__()
        places = list(accumulate((column.size for column in columns), initial=0))
        rows = [row for place, column in zip(places, columns, strict=False) for row in self.outputs(place, column)]
        self.columns = places[-1]
        self.register_buffer("source", torch.tensor([row[0] for row in rows]))
        self.register_buffer("numeric", torch.tensor([row[1] == "number" for row in rows]))
        self.register_buffer("missing", torch.tensor([row[1] == "missing" for row in rows]))
        numbers = torch.tensor([row[2:] for row in rows], dtype=torch.float64)
        self.register_buffer("centre", numbers[:, 0].clone())  # of a category: its position
        self.register_buffer("spread", numbers[:, 1].clone())

    @staticmethod
    def outputs(place: int, column: Column) -> list[tuple[Any, ...]]:
        """The columns of the model's input that one column of the table becomes, in their order."""
        if column.kind != "categorical":
            found = [(place + more, "number", column.mean, column.std) for more in range(column.size)]
        else:
            found = [(place, "category", float(code), 1.0) for code in range(len(column.categories))]
        return [*found, *([(place, "missing", 0.0, 1.0)] if column.missing else [])]

    def forward(self, x: Tensor) -> Tensor:
        refuse_other_shape(x, (self.columns,))
        values = x.double()[:, self.source]
        gone = values.isnan()
        # Halved first, as in the training, where the difference of two large numbers could overflow.
        scores = torch.where(gone, 0.0, (values / 2 - self.centre / 2) / self.spread * 2).float()
        # Floats before `where`: ONNX Runtime cannot choose between truth values.
        flags = torch.where(self.missing, gone.float(), (values == self.centre).float())
        return torch.where(self.numeric, scores, flags)


class FromNumbers(nn.Module):
    """Rows of numbers, used as they are."""

    def __init__(self, form: InputForm) -> None:
        super().__init__()
        self.sample_shape = form.sample_shape

    def forward(self, x: Tensor) -> Tensor:
        refuse_other_shape(x, self.sample_shape)
        return x.float()


class FromTokens(nn.Module):
    """Rows of token ids."""

    def __init__(self, form: InputForm) -> None:
        super().__init__()
        self.sample_shape = form.sample_shape

    def forward(self, x: Tensor) -> Tensor:
        refuse_other_shape(x, self.sample_shape)
        return x.long()


class ScaledRows(nn.Module):
    """The scaling of an encoder's rows, which are rounded to half precision first, as in the training."""

    mean: Tensor
    factor: Tensor

    def __init__(self, scaling: Scaling) -> None:
        super().__init__()
        self.scale = scaling.scale
        self.register_buffer("mean", torch.from_numpy(scaling.mean.copy()))
        self.register_buffer("factor", torch.from_numpy(scaling.factor.copy()))

    def forward(self, rows: Tensor) -> Tensor:
        rows = rows.half().float()
        if self.scale in ("std_l2", "std", "idf_l2"):
            rows = (rows - self.mean) * self.factor
        if self.scale in ("std_l2", "l2", "idf_l2"):
            length = (rows * rows).sum(1, keepdim=True).sqrt()
            rows = rows * torch.where(length > 0, LENGTH / torch.where(length > 0, length, 1.0), 0.0)
        return rows


def encoding_front(form: InputForm, network: nn.Module, scaling: Scaling) -> nn.Module:
    """The module in front of a head: what a user has, through the encoder, scaled."""
    steps = [network] if form.kind == "images" else [preprocessing(form), network]
    return nn.Sequential(*steps, ScaledRows(scaling))


def refuse_other_shape(x: Tensor, allowed: tuple[int, ...]) -> None:
    """Refuse a batch whose samples have another shape."""
    if tuple(x.shape[1:]) != tuple(allowed):
        raise DataError(
            f"a batch of the shape {tuple(x.shape)} was given; allowed: (n, {', '.join(map(str, allowed))})."
        )


class AnsweringModule(nn.Module):
    """The trained model in eval mode: one score (logit) per class for each sample.

    It takes a tensor (see the `From...` class in `preprocess`), or what the user has in Python: a data frame, a list
    of texts, an array.
    """

    def __init__(
        self, form: InputForm, models: Sequence[nn.Module], method: Method, front: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.form, self.method = form, method
        self.preprocess = preprocessing(form) if front is None else front
        self.models = nn.ModuleList(models)
        self.eval()
        self.requires_grad_(False)

    def forward(self, x: Any) -> Tensor:
        """The logits, in the order of `form.class_names`."""
        ready = self.preprocess(x if isinstance(x, Tensor) else self.tensor_of(x))
        return self.method.joined([model(ready) for model in self.models])

    def tensor_of(self, values: Any) -> Tensor:
        """What a user has as a tensor on the model's device."""
        return raw_tensor(values, self.form).to(next(self.parameters()).device)


def preprocessing(form: InputForm) -> nn.Module:
    """The module that turns a user's tensor into the input of the trained models."""
    if form.columns:
        return FromColumns(form.columns)
    kinds = {"images": FromImages, "rows": FromNumbers, "tokens": FromTokens}
    return kinds[form.kind](form)


def raw_tensor(values: Any, form: InputForm) -> Tensor:
    """A tensor from a data frame, a dictionary or list of rows, a list of texts, or an array."""
    if form.columns and not (isinstance(values, np.ndarray) and values.dtype.kind in "biuf"):
        return torch.from_numpy(raw_columns(text_table(values, form, "x"), form))
    if form.hashed_words and are_texts(values):
        features = of_texts([str(text) for text in values], form)
        return torch.from_numpy(features.take(np.arange(len(features))))
    array = values.to_numpy() if hasattr(values, "to_numpy") else np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise DataError(f"x has the type {array.dtype}; a sample of this model is {form.described()}.")
    return torch.from_numpy(np.ascontiguousarray(array))
