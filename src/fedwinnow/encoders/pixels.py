"""From stored images to the input of a pretrained network: three channels, a fixed size, centred pixels."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from fedwinnow.errors import DataError, UsageError

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


class FromPixels(nn.Module):
    """The same in one module that can be exported: uint8 images (n, height, width, channels), or floats from 0 to 1.

    A pixel becomes (pixel / unit - shift) / spread, after scaling.
    """

    vertical: Tensor
    horizontal: Tensor
    shift: Tensor
    spread: Tensor

    def __init__(
        self,
        sample_shape: tuple[int, ...],
        side: int | None,
        channels: int | None,
        unit: float,
        shift: tuple[float, ...],
        spread: tuple[float, ...],
    ) -> None:
        super().__init__()
        height, width, colours = sample_shape
        self.sample_shape, self.unit = (height, width, colours), unit
        self.scales = side is not None and (height, width) != (side, side)
        self.widens = channels == COLOURS and colours == 1
        self.register_buffer("vertical", scaling_matrix(height, side or height).clone())
        self.register_buffer("horizontal", scaling_matrix(width, side or width).T.clone())
        self.register_buffer("shift", torch.tensor(shift).view(1, -1, 1, 1))
        self.register_buffer("spread", torch.tensor(spread).view(1, -1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        height, width, colours = self.sample_shape
        if x.dim() == 3 and colours == 1:  # grey images without an axis of channels
            x = x[:, None] if x.is_floating_point() else x[..., None]
        allowed = (colours, height, width) if x.is_floating_point() else self.sample_shape
        if tuple(x.shape[1:]) != allowed:
            raise DataError(
                f"a batch of the shape {tuple(x.shape)} was given; allowed: (n, {allowed[0]}, {allowed[1]}"
                f", {allowed[2]})."
            )
        pixels = x.float() * 255.0 if x.is_floating_point() else x.permute(0, 3, 1, 2).float()
        if self.scales:
            pixels = self.vertical @ pixels @ self.horizontal
        if self.widens:
            pixels = pixels.expand(-1, COLOURS, -1, -1)
        return (pixels / self.unit - self.shift) / self.spread


@cache
def scaling_matrix(before: int, after: int) -> Tensor:
    """The matrix (after, before) that scales a line of pixels bicubically."""
    unit = torch.eye(before)[None, None]
    made = functional.interpolate(
        unit, size=(after, before), mode="bicubic", align_corners=False, antialias=after < before
    )
    return made[0, 0].contiguous()
