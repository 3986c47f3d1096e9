"""Learning from samples without labels: guess by averaging over views, sharpen the guess, mix everything.

Berthelot et al., MixMatch: A Holistic Approach to Semi-Supervised Learning, NeurIPS 2019.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedwinnow.federation.method import beta_draw
from fedwinnow.mathematics.flat_model import FlatModel


def mean_prediction(models: list[FlatModel], views: list[Tensor]) -> Tensor:
    """The mean probabilities of these models over these views."""
    return torch.stack([model.module(view).softmax(1) for model in models for view in views]).mean(0)


def sharpened(probabilities: Tensor, temperature: float) -> Tensor:
    """p^(1/T), made to sum to 1."""
    powers = probabilities.pow(1 / temperature)
    return powers / powers.sum(1, keepdim=True)


def mixed(inputs: Tensor, targets: Tensor, alpha: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Mix every sample with a random other one; the share, from Beta(alpha, alpha), is at least one half for itself."""
    share = beta_draw(alpha, generator)
    share = max(share, 1 - share)
    partner = torch.randperm(len(inputs), generator=generator).to(inputs.device)
    return share * inputs + (1 - share) * inputs[partner], share * targets + (1 - share) * targets[partner]


def endless(rows: Tensor, generator: torch.Generator) -> Callable[[int], Tensor]:
    """A function that returns the next `count` of these rows, in a new random order after the last row."""
    waiting = rows[:0]

    def following(count: int) -> Tensor:
        nonlocal waiting
        count = min(count, len(rows))
        if len(waiting) < count:
            waiting = rows[torch.randperm(len(rows), generator=generator)]
        taken, waiting = waiting[:count], waiting[count:]
        return taken

    return following
