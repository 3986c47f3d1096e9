"""Numbers of different scales made comparable."""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDING = 1e-9  # of the largest value: what differs by no more than that is taken to be equal


def zero_to_one(values: Tensor, smallest_range: float | None = None, alike: float = 1.0) -> Tensor:
    """Min-max, of a table column by column; values whose range is no larger than this are all `alike`."""
    if not len(values):
        return values
    if smallest_range is None:
        smallest_range = ROUNDING * float(values.abs().max())
    low, high = values.amin(0), values.amax(0)
    varies = high - low > smallest_range
    return torch.where(varies, (values - low) / torch.where(varies, high - low, 1.0), alike)
