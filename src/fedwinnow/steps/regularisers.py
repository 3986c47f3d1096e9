"""Terms of a loss that need no labels: how sure predictions are, and how often each class is predicted."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from fedwinnow.federation.client import Client

Prior = Literal["uniform", "local"]
SMALLEST = 1e-8  # avoids the logarithm of 0 for a class that is never predicted


def entropy(logits: Tensor) -> Tensor:
    """The mean entropy of the predictions."""
    return -(logits.softmax(1) * logits.log_softmax(1)).sum(1).mean()


def distance_to_prior(logits: Tensor, prior: Tensor) -> Tensor:
    """KL(prior || mean prediction of the batch)."""
    mean = logits.softmax(1).mean(0).clamp(min=SMALLEST)
    return (torch.xlogy(prior, prior) - prior * mean.log()).sum()


def expected_classes(client: Client, prior: Prior) -> Tensor:
    """How often each class should be predicted: equally often, or as often as it is among the given labels."""
    if prior == "local":
        return client.class_counts / len(client)
    return torch.full((client.classes,), 1.0 / client.classes, device=client.given.device)
