"""Numbers of different scales made comparable."""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDING = 1e-9  # times the largest value: values that differ by no more than that count as equal


def zero_to_one(values: Tensor, smallest_range: float | None = None, alike: float = 1.0) -> Tensor:
    """Min-max scaling, of a table column by column; values within `smallest_range` of each other all become `alike`."""
    if not len(values):
        return values
    if smallest_range is None:
        smallest_range = ROUNDING * float(values.abs().max())
    low, high = values.amin(0), values.amax(0)
    varies = high - low > smallest_range
    return torch.where(varies, (values - low) / torch.where(varies, high - low, 1.0), alike)
