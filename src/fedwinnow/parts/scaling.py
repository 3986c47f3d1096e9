"""Numbers of different scales made comparable."""

from __future__ import annotations

import torch
from torch import Tensor


def zero_to_one(values: Tensor, smallest_range: float) -> Tensor:
    """Min-max; values whose range is no larger than this are taken to be equal, and are all 1."""
    if not len(values):
        return values
    low, high = values.min(), values.max()
    return (values - low) / (high - low) if float(high - low) > smallest_range else torch.ones_like(values)
