"""A coordinator that reads rows of a table out of one reply of FedAvg: it sends a model that it has crafted for that.

All neurons of the first layer look the same way, each from a little farther on. What the update of one neuron has and
that of the next has not is the sum over the samples between them: where there is one, it is that sample.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from fedwinnow.mathematics.payload import FlatModel, Payload

SMALL = 1e-3  # the crafted weights are small, so that float32 tells small updates of them apart


def crafted(model: FlatModel, seed: int = 5) -> Payload:
    """The weights of an mlp with one hidden layer that bring rows of mean 0 and deviation 1 back."""
    slots = model.named(model.payload())
    hidden, width = slots["hidden1.weight"].shape
    classes = slots["fc.weight"].shape[0]
    direction = torch.randn(width, generator=torch.Generator().manual_seed(seed))
    quantiles = torch.distributions.Normal(0.0, 1.0).icdf((torch.arange(hidden) + 0.5) / hidden)
    last = 0.1 * torch.tensor([[place * (-1.0) ** (place + 1)] for place in range(1, classes + 1)])
    payload = model.payload()
    with torch.no_grad():
        named = model.named(payload)
        named["hidden1.weight"].copy_(SMALL * (direction / direction.norm()).expand(hidden, width))
        named["hidden1.bias"].copy_(-SMALL * quantiles)
        named["fc.weight"].copy_(last.expand(classes, hidden))
        named["fc.bias"].zero_()
    return payload


def brought_back(model: FlatModel, sent: Payload, got: Payload, rows: NDArray[np.float64], within: float = 0.02) -> int:
    """How many rows the coordinator can read from the reply, every value to within this much."""
    before, after = (model.named(one) for one in (sent, got))
    weight, bias = (
        (after[name].double() - before[name].double()).diff(dim=0) for name in ("hidden1.weight", "hidden1.bias")
    )
    seen = (weight / bias.unsqueeze(1))[bias.abs() > 1e-9].numpy()
    error = np.array([np.abs(seen - row).max(1).min() for row in rows]) if len(seen) else np.full(len(rows), np.inf)
    return int((error < within).sum())
