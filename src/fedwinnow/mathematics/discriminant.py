"""A linear discriminant from sums: class means and one covariance, which sites can add up without showing a sample."""

from __future__ import annotations

import torch
from torch import Tensor, nn

WIDEST = 2048  # numbers per sample: the sums of products grow with their square


def width_of_rows(module: nn.Module) -> int | None:
    """How many numbers a sample is, where the model begins with a linear layer; None where it does not, or too many."""
    for layer in module.modules():
        if any(True for _ in layer.parameters(recurse=False)):
            return layer.in_features if isinstance(layer, nn.Linear) and layer.in_features <= WIDEST else None
    return None


def class_sums(rows: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Per class the number of samples and the sums of their values, classes x (1 + width), in float64."""
    told = torch.cat([rows.new_ones(len(rows), 1, dtype=torch.float64), rows.double()], 1)
    return torch.zeros(classes, told.shape[1], dtype=torch.float64).index_add_(0, labels, told)


def products(rows: Tensor) -> Tensor:
    """The sums of products of any two values of a sample: one half of a symmetric matrix, with its diagonal."""
    whole = rows.double().T @ rows.double()
    return whole[tuple(torch.triu_indices(*whole.shape))].float()


def fitted(sums: Tensor, halved: Tensor, ridge: float) -> Tensor:
    """The discriminant from both sums over all sites: per class a constant and a factor for every value.

    One sample at the origin is added to each class, and `ridge` times the mean variance to each variance. A class
    without samples has zeros, by which `log_likelihoods` knows it.
    """
    counts, total = sums[:, 0], sums[:, 0].sum().clamp(min=1)
    width = sums.shape[1] - 1
    means = sums[:, 1:] / (counts + 1)[:, None]
    whole = torch.zeros(width, width, dtype=torch.float64)
    upper = torch.triu_indices(width, width)
    whole[upper[0], upper[1]] = halved.double()
    whole = whole + whole.triu(1).T
    covariance = whole / total - (means * (counts / total)[:, None]).T @ means
    spread = (covariance.trace() / width).clamp(min=torch.finfo(torch.float32).eps)
    factors = torch.linalg.solve(covariance + ridge * spread * torch.eye(width, dtype=torch.float64), means.T).T
    constants = -0.5 * (factors * means).sum(1, keepdim=True)
    return torch.cat([constants, factors], 1) * (counts > 0)[:, None]


def log_likelihoods(discriminant: Tensor, rows: Tensor) -> Tensor:
    """log p(x | class) of every row, up to a number per row; an unknown class has the mean likelihood of the others."""
    found = rows.double() @ discriminant[:, 1:].T + discriminant[:, 0]
    known = discriminant.any(1)
    if bool(known.all()) or not bool(known.any()):
        return found
    middle = found[:, known].logsumexp(1, keepdim=True) - float(known.sum().log())
    return torch.where(known, found, middle)
