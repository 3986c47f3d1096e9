"""Random views of images, a whole batch at once, drawn from the client's own generator."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fedwinnow.mathematics.strong_views import strong_view

PADDING = 4


def random_view(images: Tensor, views: str, generator: torch.Generator) -> Tensor:
    """Views of images (n, height, width, channels): flipped, shifted, or changed strongly, as `views` names them.

    The result is uint8 as the images are.
    """
    if views == "none":
        return images
    if views == "strong":
        return strong_view(random_view(images, "crop_flip", generator), generator)
    count, height, width, _ = images.shape
    device = images.device  # only what is drawn comes from the CPU, so that a GPU need not wait for indices
    column = torch.arange(width, device=device).view(1, 1, width)
    flip = (torch.rand(count, generator=generator) < 0.5).view(count, 1, 1).to(device)
    columns = torch.where(flip, width - 1 - column, column)
    rows = torch.arange(height, device=device).view(1, height, 1)
    if views == "crop_flip":
        images = functional.pad(images, (0, 0, PADDING, PADDING, PADDING, PADDING))
        shift = torch.randint(2 * PADDING + 1, (2, count, 1, 1), generator=generator).to(device)
        rows, columns = rows + shift[0], columns + shift[1]
    return images[torch.arange(count, device=device).view(count, 1, 1), rows, columns]
