"""A second model on a site, for teachers and anchors."""

from __future__ import annotations

import torch
from torch import Tensor

from fedwinnow.federation.client import Client
from fedwinnow.federation.flat import FlatModel


def second_model(client: Client, weights: Tensor) -> FlatModel:
    """Another model with these weights and running statistics."""
    assert client.spare is not None
    model = client.spare()
    with torch.no_grad():
        model.weights.copy_(weights)
    return model
