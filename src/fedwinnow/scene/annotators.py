"""Training the annotators of instance-dependent noise; the only file of this folder that imports torch."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

from fedwinnow.data.dataset import InputStep
from fedwinnow.models.make_model import make_model
from fedwinnow.models.model import Shape
from fedwinnow.randomness import Floats
from fedwinnow.scene.noise import Ground

SCORING_BATCH = 500


def train_and_ask(
    ground: Ground, mine: slice, key: int, *, model: str | None, epochs: int, lr: float, batch: int
) -> Floats:
    """Train an annotator on one client's true labels; return its class probabilities for the client's samples."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the number of threads changes the last bits, and so sometimes a label
    try:
        return _train_and_ask(ground, mine, key, model, epochs, lr, batch)
    finally:
        torch.set_num_threads(threads)


def _train_and_ask(
    ground: Ground, mine: slice, key: int, model: str | None, epochs: int, lr: float, batch: int
) -> Floats:
    stored = torch.as_tensor(np.ascontiguousarray(ground.samples.features.take(ground.holdings.rows[mine])))
    labels = torch.as_tensor(ground.true[mine])
    step = InputStep(ground.dataset.kind, ground.dataset.mean, ground.dataset.std)
    net = make_model(model, Shape.of(ground.dataset), seed=key)
    optimiser = torch.optim.Adam(net.parameters(), lr=lr)
    generator = torch.Generator().manual_seed(key & (2**63 - 1))
    net.train()
    for _ in range(epochs):
        for rows in torch.split(torch.randperm(len(labels), generator=generator), batch):
            if len(rows) == 1 and len(labels) > 1:
                continue  # batch normalisation cannot learn from one sample
            optimiser.zero_grad()
            functional.cross_entropy(net(step(stored[rows])), labels[rows]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    net.eval()
    with torch.inference_mode():
        chunks = [net(step(chunk)).double().softmax(1) for chunk in torch.split(stored, SCORING_BATCH)]
    return np.asarray(torch.cat(chunks).numpy())
