"""Rows as they are, for features that were computed before: only the scaling is applied."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedwinnow.encoders.encoder import Batch, Encoder, Matrix, OpenEncoder, hash_of
from fedwinnow.models.model import Shape


@dataclass(frozen=True)
class PlainRows(Encoder):
    """Rows as they are, only scaled as the features of an encoder are: for features that another program computed."""

    name: ClassVar[str] = "rows"
    kinds: ClassVar[tuple[str, ...]] = ("rows",)

    def open(self, shape: Shape, mean: tuple[float, ...] = (), std: tuple[float, ...] = ()) -> OpenEncoder:
        def encode(batch: Batch) -> Matrix:
            return np.asarray(batch, np.float32)

        from torch import nn

        return OpenEncoder(
            shape.numbers, hash_of(self.settings(), []), encode, "numpy", batch=256, network=nn.Identity()
        )
