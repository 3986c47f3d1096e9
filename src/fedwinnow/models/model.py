"""What a model is, what it must know about the data, and the normalisation layer that several models use."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

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
    """The shape of the task, in the order of the data sets: an image is (height, width, channels).

    A module gets the same image as floats in the order (channels, height, width), which torch needs.
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
        """A shape from JSON, where the tuple has become a list."""
        return cls(**table | {"sample_shape": tuple(table["sample_shape"])})

    @property
    def numbers(self) -> int:
        """How many numbers one sample has."""
        return math.prod(self.sample_shape)

    @property
    def channels(self) -> int:
        """The channels of an image."""
        return self.sample_shape[2]

    @property
    def smaller_side(self) -> int:
        """The shorter of an image's height and width; it limits how often the image can be halved."""
        return min(self.sample_shape[:2])

    def need_images(self, setting: str) -> None:
        """Refuse a setting that has an effect on images only."""
        if self.kind != "images":
            raise UsageError(
                f"{setting} was given, but the samples are {self.kind}; allowed: with images. Leave it out."
            )

    def need_numbers(self, method: str, mixes: str) -> None:
        """Refuse a method that mixes samples if they are token ids: the mean of two ids is another word."""
        if self.kind == "tokens":
            remedy = f"{method} without it ({method}:mixup=0), or " if mixes.startswith("mixup=") else ""
            raise UsageError(
                f"method '{method}' mixes samples ({mixes}), but the samples are tokens, which cannot be mixed; "
                f"allowed: {remedy}a method that does not mix, such as gce."
            )

    def example(self, count: int = 2) -> torch.Tensor:
        """A batch of zeros in the form that a module gets, to try a module before any data is read."""
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

    A subclass writes `kinds` and `smallest_image` as literals: the catalogue reads them from the source text, so that
    an error can name the models that fit without importing them.
    """

    kinds: ClassVar[tuple[str, ...]] = ()
    smallest_image: ClassVar[int] = 1  # pixels of the shorter side

    @abstractmethod
    def build(self, shape: Shape) -> nn.Module:
        """A module with new weights whose output for a batch of this shape is (samples, classes)."""

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
    from torch import nn

    if norm == "batch":
        return nn.BatchNorm2d(channels)
    if norm == "batch_statistics":
        return nn.BatchNorm2d(channels, track_running_stats=False)
    if norm == "group":
        # 32 groups as usual, but at least two channels in each: normalising a channel alone would lose its strength.
        return nn.GroupNorm(max(1, min(math.gcd(32, channels), channels // 2)), channels)
    return nn.Identity()
