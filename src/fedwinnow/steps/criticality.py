"""Which parameters matter: criticality is |gradient times weight|; an update may stand for the gradient.

Xia et al., Robust Early-Learning: Hindering the Memorization of Noisy Labels, ICLR 2021; federated by FedES.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from fedwinnow.federation.client import Around, Step
from fedwinnow.mathematics.flat_model import FlatModel

MOST_POINTS = 2**22  # of a larger model every second, third, ... parameter stands for its neighbours


def signed_criticality(after: Tensor, before: Tensor, parameters: Tensor) -> Tensor:
    """(after - before) times before, of the chosen parameters; its size is their criticality."""
    weights = before[: len(parameters)]
    product = (after[: len(parameters)] - weights) * weights
    return torch.nan_to_num(product[parameters])  # a product of huge weights may overflow


def chosen_parameters(model: FlatModel, *, weights_only: bool) -> Tensor:
    """Which trainable parameters are looked at: all, or only those of linear and convolutional layers."""
    chosen = torch.full((model.trainable,), not weights_only, device=model.device)
    for slot in model.slots:
        if weights_only and slot.stop <= model.trainable and len(slot.shape) in (2, 4):
            chosen[slot.start : slot.stop] = True
    return chosen


# --- distributions of criticality -----------------------------------------------------------------------------------


def ascending(criticality: Tensor) -> Tensor:
    """The distribution of a vector of criticalities: its values in order."""
    step = -(-len(criticality) // MOST_POINTS)
    return criticality[::step].sort().values


def earth_movers_distance(first: Tensor, second: Tensor) -> float:
    """In one dimension and for equally many values: the mean distance of values of equal rank."""
    return float((first - second).abs().mean(dtype=torch.float64))


def estimates(curve: Tensor, reference: Tensor) -> dict[str, float]:
    """What FedES takes for a client's quality: mean criticality, distance to the reference, distance with its sign."""
    middle, mean = reference.mean(dtype=torch.float64), float(curve.mean(dtype=torch.float64))
    distance = earth_movers_distance(curve, reference)
    return {"mean": mean, "emd": distance, "signed_emd": float(torch.sign(mean - middle)) * distance}  # eq. (10)


def opposed(first: Tensor, second: Tensor) -> bool:
    """Whether two rankings of clients tend to be opposite."""
    first, second = first - first.mean(), second - second.mean()
    return float(first @ second) < 0


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


def packed(mask: Tensor) -> Tensor:
    """A mask as it travels: one bit per parameter."""
    return torch.from_numpy(np.packbits(mask.cpu().numpy()))


def unpacked(bits: Tensor, count: int) -> Tensor:
    """The mask that was packed."""
    return torch.from_numpy(np.unpackbits(bits.cpu().numpy(), count=count)).bool()


# --- steps ----------------------------------------------------------------------------------------------------------


def scaled_steps(factor: Callable[[FlatModel], Tensor], *, gradient: bool) -> Around:
    """Steps that are multiplied by a factor per parameter.

    What is multiplied is the whole update, so that a parameter with the factor 0 stands still; or the gradient, so that
    momentum and weight decay still move it.
    """

    def around(step: Step, model: FlatModel) -> Step:
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

    return around


def summing_into(total: Tensor) -> Around:
    """No step at all: the gradients are added up."""

    def around(step: Step, model: FlatModel) -> Step:
        def add() -> None:
            total.add_(model.gradient)

        return add

    return around
