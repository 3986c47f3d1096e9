"""Replacing labels by confident predictions."""

from __future__ import annotations

import torch
from torch import Tensor

from fedwinnow.federation.client import Client

NOTHING = -1  # the label of a sample that has none


def confident_labels(logits: Tensor, labels: Tensor, threshold: float, among: Tensor) -> Tensor:
    """Labels with those of `among` replaced by the prediction, wherever its probability exceeds the threshold."""
    probability, predicted = logits.softmax(1).max(1)
    return torch.where(among & (probability > threshold), predicted, labels)


def sure_guesses(logits: Tensor, threshold: float) -> Tensor:
    """The predicted class where its probability exceeds the threshold, else NOTHING."""
    probability, predicted = logits.softmax(1).max(1)
    return torch.where(probability > threshold, predicted, NOTHING)


def current_labels(client: Client) -> Tensor:
    """The labels that a site believes in: as corrected so far, at first as given."""
    return client.state.get("labels", client.given.cpu()).to(client.given.device)


def leaning(p_wrong: Tensor, wrong: Tensor) -> Tensor:
    """Probabilities moved to the upper half where a method calls a label wrong, to the lower half elsewhere."""
    return torch.where(wrong, 0.5 + p_wrong / 2, p_wrong / 2)


def largest(values: Tensor, count: int) -> Tensor:
    """A mask of the `count` largest values; equal values are taken in order."""
    mask = torch.zeros(len(values), dtype=torch.bool, device=values.device)
    mask[values.argsort(descending=True, stable=True)[:count]] = True
    return mask
