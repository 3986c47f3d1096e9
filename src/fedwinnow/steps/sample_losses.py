"""The loss of each sample, by which clean and wrong labels are told apart."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from fedwinnow.federation.client import Client

LossKind = Literal["cross_entropy", "double_softmax"]


def sample_losses(logits: Tensor, labels: Tensor, kind: LossKind | None = None) -> Tensor:
    """Cross-entropy per sample; `double_softmax` repeats released codes that took the softmax twice.

    The double softmax is -p_y + log sum exp p_c: bounded, in a band of width 1.
    """
    scores = logits.softmax(1) if kind == "double_softmax" else logits
    return functional.cross_entropy(scores, labels, reduction="none")


def mean_over_visits(client: Client, losses: Tensor) -> Tensor:
    """The running mean of each sample's loss, with these as those of another visit; the site keeps it."""
    visits = client.state.get("visits", torch.zeros(1)) + 1
    before = client.state.get("mean_loss", torch.zeros_like(losses))
    client.state["visits"] = visits
    client.state["mean_loss"] = mean = before + (losses - before) / visits
    return mean
