"""Which parameters of a model matter: the criticality of one is |gradient times weight|.

Xia et al., Robust Early-Learning: Hindering the Memorization of Noisy Labels, ICLR 2021; federated by FedES.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedwinnow.federation.client import Step, StepWrapper
from fedwinnow.mathematics.payload import FlatModel


def chosen_parameters(model: FlatModel, *, weights_only: bool) -> Tensor:
    """A mask of the trainable parameters that are compared: all, or the weights of linear and convolutional layers."""
    chosen = torch.full((model.trainable,), not weights_only, device=model.device)
    for slot in model.slots:
        if weights_only and slot.stop <= model.trainable and len(slot.shape) in (2, 4):
            chosen[slot.start : slot.stop] = True
    return chosen


# --- masks ----------------------------------------------------------------------------------------------------------


def most_critical(criticality: Tensor, share: float) -> Tensor:
    """A mask of the given share of parameters with the largest criticality; all that tie with the last are in."""
    count = int(share * len(criticality) + 1e-6)
    if count == 0:
        return torch.zeros_like(criticality, dtype=torch.bool)
    return criticality >= criticality.kthvalue(len(criticality) - count + 1).values


def masked_factor(mask: Tensor, share: float, chosen: Tensor) -> Tensor:
    """The factor of each step: `share` in the mask, 0 outside, 1 for parameters that are not compared."""
    return factor_at(chosen.nonzero().flatten(), mask, share, len(chosen))


def factor_at(places: Tensor, mask: Tensor, share: float, parameters: int) -> Tensor:
    """The same with the places of the parameters that are compared."""
    factor = torch.ones(parameters, device=places.device)
    return factor.index_copy_(0, places, share * mask.to(factor))


def critical_factor(share: float, chosen: Tensor) -> Callable[[FlatModel, Tensor], Tensor]:
    """For a model and a gradient, the factor of each step with the most critical `share` of the parameters as the mask.

    Where the chosen parameters are is found out once, because a graphics card has to be waited for to know it.
    """
    places, parameters = chosen.nonzero().flatten(), len(chosen)

    def factor(model: FlatModel, gradient: Tensor) -> Tensor:
        product = gradient * model.weights[: model.trainable]
        mask = most_critical(product.abs().index_select(0, places), share)
        return factor_at(places, mask, share, parameters)

    return factor


# --- steps ----------------------------------------------------------------------------------------------------------


def scaled_steps(factor: Callable[[FlatModel], Tensor], *, gradient: bool) -> StepWrapper:
    """Multiply steps by a factor per parameter.

    Either the whole update is multiplied, so that a parameter with the factor 0 stands still; or, with `gradient`, the
    gradient only, so that momentum and weight decay still move it.
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
