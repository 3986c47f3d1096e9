"""A second model on a site, for teachers and anchors."""

from __future__ import annotations

import torch
from torch import Tensor

from fedwinnow.all_settings import Views
from fedwinnow.federation.client import Client
from fedwinnow.mathematics.payload import FlatModel
from fedwinnow.models.features import logits_and_features


def second_model(client: Client, weights: Tensor) -> FlatModel:
    """A further model with these weights and running statistics."""
    assert client.spare is not None
    model = client.spare()
    with torch.no_grad():
        model.weights.copy_(weights)
    return model


def answers(client: Client, source: Tensor | FlatModel, rows: Tensor, view: Views) -> tuple[Tensor, ...]:
    """The rows of what was computed before training, or a model's logits and features on a new view of these rows."""
    if isinstance(source, Tensor):
        return (source[rows],)
    client.forward_samples += len(rows)
    source.module.eval()
    with torch.no_grad():
        return logits_and_features(source.module, client.view(next(client.stored([rows.cpu()])), view))
