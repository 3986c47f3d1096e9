"""A multilayer perceptron, for rows of numbers and very small images."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from fedwinnow.models.model import Model, Shape
from fedwinnow.options import option


@dataclass(frozen=True)
class Mlp(Model):
    """Fully connected layers with ReLU between them."""

    name: ClassVar[str] = "mlp"
    kinds: ClassVar[tuple[str, ...]] = ("rows", "images")

    hidden: int = option(128, "Units of each hidden layer.", at_least=1)
    layers: int = option(1, "How many hidden layers.", at_least=1)

    def build(self, shape: Shape) -> nn.Module:
        self.check_fits(shape)
        steps: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
        width = shape.numbers
        for number in range(1, self.layers + 1):
            steps[f"hidden{number}"] = nn.Linear(width, self.hidden)
            steps[f"relu{number}"] = nn.ReLU()
            width = self.hidden
        steps["fc"] = nn.Linear(width, shape.classes)
        return nn.Sequential(steps)
