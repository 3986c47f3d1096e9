"""Replacing labels by confident predictions."""

from __future__ import annotations

import torch
from torch import Tensor


def confident_labels(logits: Tensor, labels: Tensor, threshold: float, among: Tensor) -> Tensor:
    """Labels with those of `among` replaced by the prediction, wherever its probability exceeds the threshold."""
    probability, predicted = logits.softmax(1).max(1)
    return torch.where(among & (probability > threshold), predicted, labels)


def largest(values: Tensor, count: int) -> Tensor:
    """A mask of the `count` largest values; equal values are taken in order."""
    mask = torch.zeros(len(values), dtype=torch.bool, device=values.device)
    mask[values.argsort(descending=True, stable=True)[:count]] = True
    return mask
