"""A linear classifier: multinomial logistic regression."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from fedwinnow.models.model import Model, Shape


@dataclass(frozen=True)
class LinearModel(Model):
    """One linear layer on the numbers of a sample; the smallest baseline there is."""

    name: ClassVar[str] = "linear"
    kinds: ClassVar[tuple[str, ...]] = ("rows", "images")

    def build(self, shape: Shape) -> nn.Module:
        self.check_fits(shape)
        return nn.Sequential(OrderedDict(flatten=nn.Flatten(), fc=nn.Linear(shape.numbers, shape.classes)))
