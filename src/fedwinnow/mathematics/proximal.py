"""The distance of a model from the one that was sent, as part of a loss."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedwinnow.mathematics.payload import FlatModel


def distance_to(sent: Tensor, model: FlatModel, *, squared: bool = True) -> Tensor:
    """The (squared) distance of the trainable weights from those that were sent; buffers do not count."""
    now = torch.cat(
        [
            parameter.permute(0, 2, 3, 1).flatten() if parameter.dim() == 4 else parameter.flatten()
            for parameter in model.parameters
        ]
    )
    total = (now - sent[: model.trainable].to(now.device)).pow(2).sum()
    # The square root has no gradient at 0, so 0 is used there.
    return total if squared else torch.where(total > 0, total.clamp(min=1e-24).sqrt(), total)


def pull_back(sent: Tensor, weight: float, *, squared: bool = True) -> Callable[[FlatModel], None]:
    """A function that adds the gradient of `weight` times `distance_to` to a model's gradient, without autograd."""

    def add(model: FlatModel) -> None:
        away = model.weights[: model.trainable] - sent[: model.trainable].to(model.device)
        if squared:
            model.gradient.add_(away, alpha=2 * weight)
            return
        total = away.pow(2).sum()
        # At 0, and so near to it that the distance counts as 1e-12, there is no gradient.
        factor = torch.where(total >= 1e-24, weight / total.clamp(min=1e-24).sqrt(), 0.0)
        model.gradient.addcmul_(away, factor)

    return add
