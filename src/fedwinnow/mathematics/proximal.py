"""The distance of a model from the one that was sent, as part of a loss."""

from __future__ import annotations

import torch
from torch import Tensor

from fedwinnow.mathematics.payload import FlatModel


def distance_to(sent: Tensor, model: FlatModel, *, squared: bool = True) -> Tensor:
    """The (squared) distance of the trainable weights from those that were sent; buffers do not count."""
    now = torch.cat(
        [
            parameter.permute(0, 2, 3, 1).flatten() if parameter.dim() == 4 else parameter.flatten()
            for parameter in model.module.parameters()
        ]
    )
    total = (now - sent[: model.trainable].to(now.device)).pow(2).sum()
    # The square root has no gradient at 0, so 0 is used there.
    return total if squared else torch.where(total > 0, total.clamp(min=1e-24).sqrt(), total)
