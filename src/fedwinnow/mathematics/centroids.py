"""One mean feature vector per class; a row of zeros stands for a class that nobody has seen."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def class_means(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """The mean of the features (samples x length) of each class (classes x length)."""
    sums = features.new_zeros(classes, features.shape[1]).index_add_(0, labels, features)
    return sums / torch.bincount(labels, minlength=classes).clamp(min=1).unsqueeze(1)


def nearest(centroids: Tensor, features: Tensor) -> Tensor:
    """The class whose centroid has the largest cosine with each sample's features, among classes that were seen."""
    cosines = functional.normalize(features, dim=1) @ functional.normalize(centroids, dim=1).T
    return torch.where(centroids.any(1), cosines, -torch.inf).argmax(1)


def likeness(before: Tensor, now: Tensor) -> Tensor:
    """The cosine of two centroids per class: 0 for a class that is not in `now`, 1 for one that was not in `before`."""
    cosine = functional.cosine_similarity(before, now, dim=1)
    return torch.where(before.any(1), cosine, now.any(1).to(cosine))
