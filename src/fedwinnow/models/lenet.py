"""A LeNet for small images, quick enough for a laptop."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import nn

from fedwinnow.models.model import Model, Shape, normalisation
from fedwinnow.options import option


@dataclass(frozen=True)
class LeNet(Model):
    """Two 5x5 convolutions of 16 and 32 channels, each followed by pooling, then a hidden layer of 128 units.

    The convolutions are padded, so that images down to 4 x 4 pixels fit.
    """

    name: ClassVar[str] = "lenet"
    kinds: ClassVar[tuple[str, ...]] = ("images",)
    smallest_image: ClassVar[int] = 4

    norm: Literal["batch", "batch_statistics", "group", "none"] = option(
        "none", "Normalisation after each convolution; batch_statistics keeps no running averages."
    )

    def build(self, shape: Shape) -> nn.Module:
        self.check_fits(shape)
        height, width, channels = shape.sample_shape
        steps: OrderedDict[str, nn.Module] = OrderedDict()
        for number, wider in ((1, 16), (2, 32)):
            steps[f"conv{number}"] = nn.Conv2d(channels, wider, kernel_size=5, padding=2)
            steps[f"norm{number}"] = normalisation(self.norm, wider)
            # Pooling first gives the same numbers as ReLU first, on a quarter of the values.
            steps[f"pool{number}"] = nn.MaxPool2d(2)
            steps[f"relu{number}"] = nn.ReLU()
            channels = wider
        steps["flatten"] = nn.Flatten()
        steps["hidden"] = nn.Linear(channels * (height // 4) * (width // 4), 128)
        steps["relu3"] = nn.ReLU()
        steps["fc"] = nn.Linear(128, shape.classes)
        return nn.Sequential(steps)
