"""The four-layer convolutional network of FedRN's experiments."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import nn

from fedwinnow.models.model import Model, Shape, normalisation
from fedwinnow.options import option


@dataclass(frozen=True)
class Cnn4(Model):
    """Four blocks of 3x3 convolution, normalisation, ReLU and pooling, then a linear layer.

    With the default normalisation a score depends on which samples share its batch, in training and in evaluation;
    keep the order and the size of scoring batches fixed.
    """

    name: ClassVar[str] = "cnn4"
    kinds: ClassVar[tuple[str, ...]] = ("images",)
    smallest_image: ClassVar[int] = 16

    width: int = option(64, "Channels of each convolution.", source="FedRN, published code", at_least=1)
    norm: Literal["batch", "batch_statistics", "group", "none"] = option(
        "batch_statistics",
        "Normalisation after each convolution; batch_statistics keeps no running averages.",
        source="FedRN, published code",
    )

    def build(self, shape: Shape) -> nn.Module:
        self.check_fits(shape)
        height, width, channels = shape.sample_shape
        steps: OrderedDict[str, nn.Module] = OrderedDict()
        for number in range(1, 5):
            steps[f"conv{number}"] = nn.Conv2d(channels, self.width, kernel_size=3, padding=1)
            steps[f"norm{number}"] = normalisation(self.norm, self.width)
            # Pooling first gives the same numbers as ReLU first, on a quarter of the values.
            steps[f"pool{number}"] = nn.MaxPool2d(2)
            steps[f"relu{number}"] = nn.ReLU()
            channels = self.width
        steps["flatten"] = nn.Flatten()
        steps["fc"] = nn.Linear(channels * (height // 16) * (width // 16), shape.classes)
        return nn.Sequential(steps)
