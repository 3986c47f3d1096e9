"""What a model is: a part with a `build` that gives a torch module for the shape of the data."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fedwinnow.catalogue import entries
from fedwinnow.errors import UsageError
from fedwinnow.models.shape import Shape
from fedwinnow.options import Part

if TYPE_CHECKING:
    from torch import nn


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
