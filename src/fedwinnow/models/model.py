"""What a model is, what it must know about the data, and the layer that several share."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from torch import nn

from fedwinnow.catalogue import entries
from fedwinnow.data.dataset import Dataset, Kind
from fedwinnow.errors import DataError, UsageError
from fedwinnow.options import Part

if TYPE_CHECKING:
    import torch
    from torch import nn


AXES = {"images": ("height", "width", "channels"), "rows": ("columns",), "tokens": ("length",)}


@dataclass(frozen=True)
class Shape:
    """The shape of the task, written as data sets write it: an image is (height, width, channels).

    A module sees the same image as floats in the order (channels, height, width), because torch computes so.
    """

    kind: Kind
    sample_shape: tuple[int, ...]
    classes: int
    vocabulary: int = 0  # how many token ids there are; 0 where samples are not tokens

    def __post_init__(self) -> None:
        axes = AXES[self.kind]
        if len(self.sample_shape) != len(axes) or min(self.sample_shape) < 1:
            raise DataError(
                f"samples of the shape {self.sample_shape} were given as {self.kind}; "
                f"allowed: ({', '.join(axes)}), each at least 1."
            )

    @classmethod
    def of(cls, dataset: Dataset) -> Shape:
        """The shape of a data set."""
        return cls(dataset.kind, tuple(dataset.sample_shape), dataset.classes, dataset.vocabulary)

    @classmethod
    def from_table(cls, table: dict[str, Any]) -> Shape:
        """A shape that travelled as JSON, which knows no tuples."""
        return cls(**table | {"sample_shape": tuple(table["sample_shape"])})

    @property
    def numbers(self) -> int:
        """How many numbers one sample has when it is laid out flat."""
        return math.prod(self.sample_shape)

    @property
    def channels(self) -> int:
        """The channels of an image."""
        return self.sample_shape[2]

    @property
    def smaller_side(self) -> int:
        """The shorter of an image's height and width: what limits how often it can be halved."""
        return min(self.sample_shape[:2])

    def need_images(self, setting: str) -> None:
        """Refuse a setting that does nothing for other samples."""
        if self.kind != "images":
            raise UsageError(
                f"{setting} was given, but the samples are {self.kind}; allowed: with images. Leave it out."
            )

    def need_numbers(self, method: str, mixes: str) -> None:
        """Refuse a method that mixes samples where they are token ids: between two words there is no third."""
        if self.kind == "tokens":
            remedy = f"{method} without it ({method}:mixup=0), or " if mixes.startswith("mixup=") else ""
            raise UsageError(
                f"method '{method}' mixes samples ({mixes}), but the samples are tokens, which cannot be mixed; "
                f"allowed: {remedy}a method that does not mix, such as gce."
            )

    def example(self, count: int = 2) -> torch.Tensor:
        """A batch of zeros as a module sees it: to try a module out before any data is read."""
        import torch

        if self.kind == "tokens":
            return torch.zeros((count, *self.sample_shape), dtype=torch.int64)
        if self.kind == "rows":
            return torch.zeros((count, *self.sample_shape))
        height, width, channels = self.sample_shape
        return torch.zeros((count, channels, height, width))


@dataclass(frozen=True)
class Model(Part):
    """Base of every model.

    A subclass writes `kinds` and `smallest_image` as literals of its own: the catalogue reads them from the text, so
    that an error can name the models that do fit without importing any of them.
    """

    kinds: ClassVar[tuple[str, ...]] = ()
    smallest_image: ClassVar[int] = 1  # pixels of the shorter side

    @abstractmethod
    def build(self, shape: Shape) -> nn.Module:
        """A module with fresh weights that gives (samples, classes) for a batch of this shape."""

    def check_fits(self, shape: Shape) -> None:
        """Refuse data that this model cannot take, and name the models that can."""
        if shape.kind not in self.kinds:
            raise UsageError(
                f"model '{self.name}' was given {shape.kind}; allowed: {' or '.join(self.kinds)}. {fitting(shape)}"
            )
        smallest = self.smallest_image
        if shape.kind == "images" and shape.smaller_side < smallest:
            height, width = shape.sample_shape[:2]
            raise UsageError(
                f"model '{self.name}' was given images of {height} x {width} pixels; "
                f"allowed: at least {smallest} x {smallest}. {fitting(shape)}"
            )


def fitting(shape: Shape) -> str:
    """A sentence that names the models for data of this shape."""
    names = [
        entry.name
        for entry in entries("models").values()
        if shape.kind in entry.facts.get("kinds", ())
        and (shape.kind != "images" or entry.facts.get("smallest_image", 1) <= shape.smaller_side)
    ]
    return f"Models that fit this data: {', '.join(names)}."


Norm = Literal["batch", "batch_statistics", "group", "none"]


def normalisation(norm: Norm, channels: int) -> nn.Module:
    """The normalisation layer of this name, or one that does nothing."""
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    if norm == "batch_statistics":
        return nn.BatchNorm2d(channels, track_running_stats=False)
    if norm == "group":
        # 32 groups as usual, but at least two channels in each: alone, a channel would lose its own strength.
        return nn.GroupNorm(max(1, min(math.gcd(32, channels), channels // 2)), channels)
    return nn.Identity()
