"""Layers that several models share."""

from __future__ import annotations

import math
from typing import Literal

from torch import nn

Norm = Literal["batch", "batch_statistics", "group", "none"]


def normalisation(norm: Norm, channels: int) -> nn.Module:
    """The normalisation layer of this name, or one that does nothing."""
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    if norm == "batch_statistics":
        return nn.BatchNorm2d(channels, track_running_stats=False)
    if norm == "group":
        # 32 groups as usual, but at least two channels in each: alone, a channel would lose its own strength.
        return nn.GroupNorm(max(1, min(math.gcd(32, channels), channels // 2)), channels)
    return nn.Identity()
