"""From stored images to the input of a pretrained network: three channels, a fixed size, centred pixels."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedwinnow.errors import UsageError

COLOURS = 3


def refuse_channels(name: str, channels: int) -> None:
    """Refuse images that are neither grey nor coloured."""
    if channels not in (1, COLOURS):
        raise UsageError(
            f"encoder '{name}' was given images of {channels} channels; allowed: 1 (grey) or 3 (red, green, blue)."
        )


def scaled(images: NDArray[Any], side: int | None, channels: int | None = COLOURS) -> Tensor:
    """uint8 images (n, height, width, channels) as floats 0 to 255 (n, channels, side, side), in channels-last layout.

    Bicubic scaling is linear, so it is two multiplications with matrices that are made once per size.
    """
    stored = torch.from_numpy(np.array(images))  # a copy: a mapped array is read-only
    pixels = stored.permute(0, 3, 1, 2).float()
    if side is not None and tuple(pixels.shape[2:]) != (side, side):
        height, width = pixels.shape[2:]
        pixels = scaling_matrix(height, side) @ pixels @ scaling_matrix(width, side).T
    if channels == COLOURS and pixels.shape[1] == 1:
        pixels = pixels.expand(-1, COLOURS, -1, -1)
    return pixels.contiguous(memory_format=torch.channels_last)


@cache
def scaling_matrix(before: int, after: int) -> Tensor:
    """The matrix (after, before) that scales a line of pixels bicubically."""
    unit = torch.eye(before)[None, None]
    made = functional.interpolate(
        unit, size=(after, before), mode="bicubic", align_corners=False, antialias=after < before
    )
    return made[0, 0].contiguous()
