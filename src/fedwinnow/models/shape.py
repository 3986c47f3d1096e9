"""What a model must know about the data: the kind and shape of one sample, and how many classes there are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedwinnow.data.dataset import Dataset, Kind
from fedwinnow.errors import DataError, UsageError

if TYPE_CHECKING:
    import torch

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
