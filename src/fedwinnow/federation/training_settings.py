"""The settings of local training, which are the same for every method and every client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

BatchNorm = Literal["average", "local", "batch_statistics"]
Views = Literal["none", "flip", "crop_flip", "strong"]


@dataclass(frozen=True)
class Training:
    """How a client trains."""

    epochs: int = 5
    batch_size: int = 32
    optimizer: str = "sgd:lr=0.03,momentum=0.5"
    views: Views = "none"
    clip: float | None = None
    drop_last: bool = False
    batch_norm: BatchNorm = "average"
    mixed_precision: bool = False
