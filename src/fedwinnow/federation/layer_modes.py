"""What is done to layers of any model: seeding those that draw, and batch normalisation without a memory."""

from __future__ import annotations

import torch
from torch import nn


def seed_layers(key: int, device: torch.device) -> None:
    """Seed the generators that layers such as dropout draw from.

    `torch.manual_seed` would also note the call, with its whole stack, for GPUs that may be used one day.
    """
    torch.default_generator.manual_seed(key)
    if device.type == "cuda":
        torch.cuda.manual_seed(key)
    elif device.type == "mps":
        torch.mps.manual_seed(key)


def use_batch_statistics(module: nn.Module) -> None:
    """Make every batch normalisation forget its running statistics and use those of the batch, also in scoring."""
    for layer in module.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.track_running_stats = False
            layer.running_mean = layer.running_var = layer.num_batches_tracked = None
