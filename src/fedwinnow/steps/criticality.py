"""Which parameters matter: criticality is |gradient times weight|.

Xia et al., Robust Early-Learning: Hindering the Memorization of Noisy Labels, ICLR 2021; federated by FedES.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedwinnow.federation.client import Step, StepWrapper
from fedwinnow.mathematics.flat_model import FlatModel


def chosen_parameters(model: FlatModel, *, weights_only: bool) -> Tensor:
    """Which trainable parameters are looked at: all, or only those of linear and convolutional layers."""
    chosen = torch.full((model.trainable,), not weights_only, device=model.device)
    for slot in model.slots:
        if weights_only and slot.stop <= model.trainable and len(slot.shape) in (2, 4):
            chosen[slot.start : slot.stop] = True
    return chosen


# --- masks ----------------------------------------------------------------------------------------------------------


def most_critical(criticality: Tensor, share: float) -> Tensor:
    """Which parameters are at least as critical as the last of the given share; ties are all in."""
    count = int(share * len(criticality) + 1e-6)
    if count == 0:
        return torch.zeros_like(criticality, dtype=torch.bool)
    return criticality >= criticality.kthvalue(len(criticality) - count + 1).values


def masked_factor(mask: Tensor, share: float, chosen: Tensor) -> Tensor:
    """What each step is multiplied by: the share where the mask is, 0 elsewhere, 1 for parameters not looked at."""
    factor = torch.ones(len(chosen), device=chosen.device)
    factor[chosen] = share * mask.to(factor)
    return factor


def critical_factor(model: FlatModel, gradient: Tensor, share: float, chosen: Tensor) -> Tensor:
    """The same with the mask of the `share` most critical parameters: |gradient times weight|."""
    product = gradient * model.weights[: model.trainable]
    return masked_factor(most_critical(product.abs()[chosen], share), share, chosen)


# --- steps ----------------------------------------------------------------------------------------------------------


def scaled_steps(factor: Callable[[FlatModel], Tensor], *, gradient: bool) -> StepWrapper:
    """Steps that are multiplied by a factor per parameter.

    What is multiplied is the whole update, so that a parameter with the factor 0 stands still; or the gradient, so that
    momentum and weight decay still move it.
    """

    def wrap(step: Step, model: FlatModel) -> Step:
        weights = model.weights[: model.trainable]

        def scaled_gradient() -> None:
            model.gradient.mul_(factor(model))
            step()

        def scaled_update() -> None:
            share = factor(model)
            before = weights.clone()
            step()
            torch.lerp(before, weights, share, out=weights)

        return scaled_gradient if gradient else scaled_update

    return wrap
