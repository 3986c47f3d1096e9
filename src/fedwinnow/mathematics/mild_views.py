"""Mild views of images, as FedLSR compares a prediction with: a grey image is turned, a coloured one recoloured.

Images are uint8 (n, height, width, channels) before and after. Colours change as in SimCLR's jitter: brightness,
contrast and saturation by up to 80 %, the hue by up to a fifth of the circle, four times in five; one in five is grey.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedwinnow.mathematics.strong_views import MOVES, luma, moved

JITTERED, GREY, FLIPPED = 0.8, 0.2, 0.5  # how often
STRENGTH = 0.8
HUE = 0.2  # of the circle
# Brightness and two axes of colour: saturation and hue are a stretch and a turn in the plane of the latter.
YIQ = ((0.299, 0.587, 0.114), (0.5959, -0.2746, -0.3213), (0.2115, -0.5227, 0.3112))


def mild_view(images: Tensor, generator: torch.Generator, *, together: bool = False) -> Tensor:
    """A random view of each image, or (together) the same random change for the whole batch."""
    luck = torch.rand(7, 1 if together else len(images), generator=generator)
    luck = luck.to(images.device).expand(7, len(images))
    if images.shape[-1] != 3:
        turn = torch.full((len(images),), MOVES.index("rotate"), device=images.device)
        return moved(images, turn, luck[0])  # by up to 30 degrees
    flipped = torch.where((luck[0] < FLIPPED).view(-1, 1, 1, 1), images.flip(2), images)
    return recoloured(flipped, luck[1:])


def recoloured(images: Tensor, luck: Tensor) -> Tensor:
    """Colours changed by six numbers from 0 to 1 per image: whether, brightness, contrast, saturation, hue, grey."""
    changed = luck[0] < JITTERED
    scale = torch.where(changed, 1 - STRENGTH + 2 * STRENGTH * luck[1:4], 1.0)
    brightness, contrast, saturation = scale.view(3, -1, 1, 1, 1)
    angle = torch.where(changed, 2 * math.pi * HUE * (2 * luck[4] - 1), 0.0)
    saturation = torch.where((luck[5] < GREY).view(-1, 1, 1, 1), 0.0, saturation)
    exact = images.float() * brightness
    middle = luma(exact).mean((1, 2)).view(-1, 1, 1, 1)
    exact = middle + (exact - middle) * contrast
    axes = torch.tensor(YIQ, device=images.device)
    light, *plane = (exact @ axes.T).unbind(-1)
    colour = torch.stack(plane, -1) * saturation
    cosine, sine = angle.cos().view(-1, 1, 1), angle.sin().view(-1, 1, 1)
    first, second = colour.unbind(-1)
    turned = torch.stack([light, cosine * first - sine * second, sine * first + cosine * second], -1)
    back: Tensor = torch.linalg.inv(axes)
    return (turned @ back.T).round().clamp(0, 255).to(torch.uint8)
