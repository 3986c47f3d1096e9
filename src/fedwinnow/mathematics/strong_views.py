"""Strong views of images, as RandAugment draws them: three random changes of tone, sharpness or place, then a patch.

Cubuk et al., RandAugment, NeurIPS 2020, with the fourteen operations and ranges that FixMatch made usual. Images are
uint8 (n, height, width, channels) before and after; each image has its own random numbers, and a batch is one call.
Changes of tone are tables of 256 entries per image and channel, changes of place are one index per pixel.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

TONES = ("autocontrast", "equalize", "brightness", "contrast", "posterize", "solarize")
BLENDS = ("saturation", "sharpness")
MOVES = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
OPERATIONS = ("identity", *TONES, *BLENDS, *MOVES)

PASSES = 3
ROTATION = math.radians(30)
SHEAR = 0.3
TRANSLATION = 0.3  # of the side
PATCH = 0.5  # the longest side of the patch, of the image's width
PATCH_GREY = 127
LUMA = (0.299, 0.587, 0.114)


def strong_view(images: Tensor, generator: torch.Generator) -> Tensor:
    """Three random operations of random strength on each image, one after the other, then a grey patch."""
    for _ in range(PASSES):
        kinds = torch.randint(len(OPERATIONS), (len(images),), generator=generator)
        strength = torch.rand(len(images), generator=generator).to(images.device)
        images = changed(images, kinds, strength)
    return patched(images, torch.rand(3, len(images), generator=generator).to(images.device))


def changed(images: Tensor, kinds: Tensor, strength: Tensor) -> Tensor:
    """Each image changed by operation number `kinds`, with a strength from 0 to 1.

    The kinds stay on the CPU: there the members of a group are found without waiting for a GPU.
    """
    images = images.clone()
    for group, change in ((TONES, toned), (BLENDS, blended), (MOVES, moved)):
        first = OPERATIONS.index(group[0])
        members = ((kinds >= first) & (kinds < first + len(group))).nonzero().flatten()
        if len(members):
            places = members.to(images.device)
            images[places] = change(images[places], kinds[members] - first, strength[places])
    return images


def factor(strength: Tensor) -> Tensor:
    """How much of the image stays in a blend: 0.05 to 0.95."""
    return 0.05 + 0.9 * strength


def luma(channels: Tensor) -> Tensor:
    """The brightness of (..., channels); where there are not three channels, their mean."""
    if channels.shape[-1] == 3:
        return channels @ torch.tensor(LUMA, device=channels.device)
    return channels.mean(-1)


# --- tone -----------------------------------------------------------------------------------------------------------


def toned(images: Tensor, kinds: Tensor, strength: Tensor) -> Tensor:
    """Every value of an image replaced by its entry in a table."""
    count, channels = len(images), images.shape[-1]
    place = torch.arange(count * channels, device=images.device).view(count, 1, 1, channels) * 256 + images
    histogram = torch.zeros(count * channels * 256, device=images.device)
    histogram.scatter_add_(0, place.flatten(), torch.ones(1, device=images.device).expand(place.numel()))
    histogram = histogram.view(count, channels, 256)
    values = torch.arange(256.0, device=images.device)
    tables = values.expand(count, channels, 256).clone()
    for number, name in enumerate(TONES):
        members = (kinds == number).nonzero().flatten().to(images.device)
        if len(members):
            tables[members] = table(name, values, histogram[members], strength[members].view(-1, 1, 1))
    return tables.round().clamp(0, 255).to(torch.uint8).flatten()[place]


def table(name: str, values: Tensor, histogram: Tensor, strength: Tensor) -> Tensor:
    """What each value (0 to 255) of an image becomes; tables of shape (n, channels or 1, 256)."""
    if name == "autocontrast":
        return stretched(values, histogram)
    if name == "equalize":
        return equalized(values, histogram)
    if name == "brightness":
        return values * factor(strength)
    if name == "contrast":
        means = (histogram * values).sum(-1) / histogram.sum(-1)
        grey = luma(means).round().view(-1, 1, 1)
        return grey + (values - grey) * factor(strength)
    if name == "posterize":
        step = 2 ** (4 * strength).round()  # 4 to 8 bits stay
        return (values / step).floor() * step
    return torch.where(values < 256 * strength, values, 255 - values)  # solarize


def stretched(values: Tensor, histogram: Tensor) -> Tensor:
    """The smallest value becomes 0 and the largest 255; a channel with one value stays as it is."""
    held = histogram > 0
    low = torch.where(held, values, 256.0).amin(-1, keepdim=True)
    high = torch.where(held, values, -1.0).amax(-1, keepdim=True)
    return torch.where(high > low, (values - low) * 255 / (high - low).clamp(min=1), values)


def equalized(values: Tensor, histogram: Tensor) -> Tensor:
    """Values spread so that all are about equally frequent; a channel with one value stays as it is."""
    last = torch.where(histogram > 0, values, -1.0).argmax(-1, keepdim=True)
    step = ((histogram.sum(-1, keepdim=True) - histogram.gather(-1, last)) / 255).floor()
    before = histogram.cumsum(-1) - histogram
    spread = ((before + (step / 2).floor()) / step.clamp(min=1)).floor()
    return torch.where(step > 0, spread, values)


# --- blends ---------------------------------------------------------------------------------------------------------


def blended(images: Tensor, kinds: Tensor, strength: Tensor) -> Tensor:
    """The image blended with its grey version (saturation) or with its smooth version (sharpness)."""
    exact = images.float()
    other = exact.clone()
    greyed = (kinds == BLENDS.index("saturation")).nonzero().flatten().to(images.device)
    smoothed = (kinds == BLENDS.index("sharpness")).nonzero().flatten().to(images.device)
    other[greyed] = luma(exact[greyed]).unsqueeze(-1).expand_as(exact[greyed])
    other[smoothed] = smooth(exact[smoothed])
    return torch.lerp(other, exact, factor(strength).view(-1, 1, 1, 1)).round().clamp(0, 255).to(torch.uint8)


def smooth(exact: Tensor) -> Tensor:
    """A mean over each pixel (weight 5) and its eight neighbours; the border stays as it is."""
    if min(exact.shape[1:3]) < 3:
        return exact
    three_rows = exact[:, :-2] + exact[:, 1:-1] + exact[:, 2:]
    nine = three_rows[:, :, :-2] + three_rows[:, :, 1:-1] + three_rows[:, :, 2:]
    result = exact.clone()
    result[:, 1:-1, 1:-1] = (nine + 4 * exact[:, 1:-1, 1:-1]) / 13
    return result


# --- place ----------------------------------------------------------------------------------------------------------


def moved(images: Tensor, kinds: Tensor, strength: Tensor) -> Tensor:
    """Images turned, sheared or shifted, with the nearest pixel; pixels from outside the image are black."""
    count, height, width, _ = images.shape
    down, right = (height - 1) / 2, (width - 1) / 2
    signed, kinds = 2 * strength - 1, kinds.to(images.device)
    chosen = {name: torch.where(kinds == number, signed, 0.0).view(-1, 1, 1) for number, name in enumerate(MOVES)}
    angle = ROTATION * chosen["rotate"]
    y = (torch.arange(height, device=images.device) - down).view(1, height, 1)
    x = (torch.arange(width, device=images.device) - right).view(1, 1, width)
    # Four of the five are zero, so their order does not matter.
    from_x = angle.cos() * x + (angle.sin() + SHEAR * chosen["shear_x"]) * y
    from_y = angle.cos() * y + (SHEAR * chosen["shear_y"] - angle.sin()) * x
    columns = (from_x + right + TRANSLATION * width * chosen["translate_x"]).round().long()
    rows = (from_y + down + TRANSLATION * height * chosen["translate_y"]).round().long()
    inside = (columns >= 0) & (columns < width) & (rows >= 0) & (rows < height)
    which = torch.arange(count, device=images.device).view(-1, 1, 1)
    return images[which, rows.clamp(0, height - 1), columns.clamp(0, width - 1)] * inside.unsqueeze(-1)


def patched(images: Tensor, luck: Tensor) -> Tensor:
    """A grey square, up to half as wide as the image, somewhere in each image."""
    _, height, width, _ = images.shape
    half = (luck[0] * PATCH * width / 2).view(-1, 1, 1)
    y = torch.arange(height, device=images.device).view(1, height, 1) + 0.5
    x = torch.arange(width, device=images.device).view(1, 1, width) + 0.5
    covered = ((y - luck[1].view(-1, 1, 1) * height).abs() < half) & ((x - luck[2].view(-1, 1, 1) * width).abs() < half)
    return images.masked_fill(covered.unsqueeze(-1), PATCH_GREY)
