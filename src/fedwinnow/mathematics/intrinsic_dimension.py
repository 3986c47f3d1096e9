"""Local intrinsic dimensionality: how many directions a sample's neighbours spread into."""

from __future__ import annotations

import torch
from torch import Tensor

from fedwinnow.mathematics.two_gaussians import exact

EPSILON = 1e-6
BLOCK = 1024  # rows of the distance matrix in memory at once


def local_intrinsic_dimensionality(points: Tensor, neighbours: int = 20) -> Tensor:
    """LID(x) = -k / sum_i log(r_i / (r_k + eps)) over the k nearest neighbours of each point, itself excluded.

    With fewer points than neighbours all others are taken; a point that coincides with a neighbour has LID 0.
    """
    count = len(points)
    near = min(neighbours, count - 1)
    points = exact(points)
    if near < 1:
        return points.new_zeros(count)
    return torch.cat([of_block(points, start, near) for start in range(0, count, BLOCK)])


def of_block(points: Tensor, start: int, near: int) -> Tensor:
    """The LID of the points from `start` on, one block of them."""
    block = points[start : start + BLOCK]
    distances = torch.cdist(block, points, compute_mode="donot_use_mm_for_euclid_dist")
    distances.diagonal(start).fill_(torch.inf)  # a point is no neighbour of itself
    radii = distances.topk(near, largest=False).values.sort(dim=1).values
    total = (radii / (radii[:, -1:] + EPSILON)).log().sum(1)
    return torch.where(torch.isfinite(total) & (total < 0), -near / total, torch.zeros_like(total))
