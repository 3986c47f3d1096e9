"""Training the last linear layer only, on features that are computed once."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fedwinnow.federation.client import Client, scoring_batch
from fedwinnow.mathematics.flat_model import FlatModel
from fedwinnow.models.features import through_head


def tune_head(client: Client, model: FlatModel, rows: Tensor, *, views: bool = False) -> None:
    """Train the head of a model on these rows for one epoch; the body stands still, so it is passed only once."""
    batches = list(torch.split(rows, scoring_batch(model)))
    model.module.eval()
    with torch.no_grad():
        passed = [
            through_head(model.module, (client.view if views else client.plain)(stored))
            for stored in client.stored(batches)
        ]
    features, labels = torch.cat([found for _, _, found in passed]), client.given[rows.to(client.given.device)]
    head = passed[0][1]
    parameters = [parameter for parameter in (head.weight, head.bias) if parameter is not None]
    vector = torch.cat([parameter.detach().flatten() for parameter in parameters])
    gradient = torch.zeros_like(vector)
    step = client.clipped(client.optimizer.start(vector, gradient), gradient)
    sizes = [parameter.numel() for parameter in parameters]
    client.forward_samples += len(rows)
    for places in client.batches(torch.arange(len(rows))):
        client.backward_samples += len(places)
        batch = places.to(features.device)
        leaf = vector.clone().requires_grad_()
        pieces = [piece.view_as(p) for piece, p in zip(torch.split(leaf, sizes), parameters, strict=True)]
        loss = functional.cross_entropy(functional.linear(features[batch], *pieces), labels[batch])
        gradient.copy_(torch.autograd.grad(loss, leaf)[0])
        step()
    with torch.no_grad():
        for parameter, piece in zip(parameters, torch.split(vector, sizes), strict=True):
            parameter.copy_(piece.view_as(parameter))
