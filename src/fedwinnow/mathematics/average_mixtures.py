"""One mixture for all from the mixtures of many sites."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

VarianceWeighting = Literal["linear", "squared", "moment"]


def average_mixtures(mixtures: Tensor, sizes: Tensor, weighting: VarianceWeighting = "linear") -> Tensor:
    """Six numbers per site (see `TwoGaussians.flat`), averaged by the sites' sizes.

    `linear` treats means, variances and weights alike; `squared` squares the shares for the variances; `moment` gives
    each component the mean and the variance that all its samples together have.
    """
    share = (sizes / sizes.sum()).unsqueeze(1)
    means, variances, weights = mixtures[:, 0:2], mixtures[:, 2:4], mixtures[:, 4:6]
    mean, weight = (share * means).sum(0), (share * weights).sum(0)
    if weighting == "squared":
        variance = (share**2 * variances).sum(0)
    elif weighting == "moment":
        mass = share * weights / weight.clamp(min=1e-12)
        mean = (mass * means).sum(0)
        variance = (mass * (variances + (means - mean) ** 2)).sum(0)
    else:
        variance = (share * variances).sum(0)
    return torch.cat([mean, variance, weight])
