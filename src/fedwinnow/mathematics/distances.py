"""Distances between models, and what they make of aggregation weights."""

from __future__ import annotations

import torch
from torch import Tensor

from fedwinnow.mathematics.flat_model import FlatModel


def model_distance(first: Tensor, second: Tensor, model: FlatModel, *, per_tensor: bool = False) -> Tensor:
    """The distance of two models as vectors of what is trained.

    `per_tensor` adds up the distances of their tensors instead, running statistics included, as one released code does.
    """
    away = first - second
    if not per_tensor:
        distance: Tensor = torch.linalg.vector_norm(away[: model.trainable])
        return distance
    pieces = [away[slot.start : slot.stop] for slot in model.slots]
    return torch.stack([torch.linalg.vector_norm(piece) for piece in pieces]).sum()


def nearness(distances: Tensor) -> Tensor:
    """exp(-d / largest d): 1 for a model at no distance, 1/e for the farthest; where none is away, 1 for all."""
    largest = distances.max()
    return torch.exp(-distances / largest) if float(largest) > 0 else torch.ones_like(distances)
