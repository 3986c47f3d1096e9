"""The nearest samples of a site, and what follows from them: a vote on labels, near-duplicates, and outliers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK = 1000  # rows that are compared at once
VOTES = 10  # neighbours that vote, and whose distance says how far off a sample is
IMAGINED = 1.0  # votes by the class frequencies of the site's other samples, so that no probability is 0
SAME = 1 - 1e-9  # from this similarity on a sample is a copy, up to rounding: it would repeat its own label
ALIKE = 0.999  # from this similarity on two samples count as near-duplicates
FAR = 3.0  # so many quartile ranges above the upper quartile a distance counts as far off
FEWEST = 20  # samples from which on quartiles mean something
LEAST = 1e-12


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The nearest other samples of each sample, the nearest first."""

    places: Tensor  # sample x neighbour
    similarity: Tensor  # the same; 1 for equal samples, about 0 for two that have nothing in common


def nearest(rows: Tensor, count: int = VOTES) -> Neighbours:
    """The nearest other samples by distance, as a similarity: 1 - squared distance / that of two samples by chance.

    Nobody is its own neighbour.
    """
    centred = (rows - rows.mean(0)).double()
    squares = centred.square().sum(1)
    by_chance = max(2 * float(squares.mean()), LEAST)
    most, places, found = min(count, len(rows) - 1), [], []
    for start in range(0, len(rows), BLOCK):
        part = centred[start : start + BLOCK]
        distance = (squares[start : start + BLOCK, None] + squares - 2 * part @ centred.T).clamp(min=0)
        distance[torch.arange(len(part)), torch.arange(start, start + len(part))] = torch.inf
        closest = distance.topk(most, dim=1, largest=False)
        places.append(closest.indices)
        found.append(1 - closest.values / by_chance)
    return Neighbours(torch.cat(places), torch.cat(found))


def votes(near: Neighbours, labels: Tensor, classes: int) -> Tensor:
    """Probabilities of the classes by the neighbours' labels, nearer ones counting more.

    The own label has no vote, and neither have copies of the sample.
    """
    frequencies = torch.bincount(labels, minlength=classes).double()
    others = frequencies - torch.nn.functional.one_hot(labels, classes) + 1  # one imagined sample of each class
    found = IMAGINED * others / others.sum(1, keepdim=True)
    weight = near.similarity.clamp(min=0).where(near.similarity < SAME, 0)
    found.scatter_add_(1, labels[near.places], weight)
    return found / found.sum(1, keepdim=True)


def near_duplicates(near: Neighbours) -> Tensor:
    """Per sample the place of the nearest one if it is almost the same, else -1."""
    if near.places.shape[1] == 0:
        return torch.full((len(near.places),), -1)
    return near.places[:, 0].where(near.similarity[:, 0] >= ALIKE, -1)


def outliers(near: Neighbours) -> Tensor:
    """Which samples are much farther from their neighbours than the others of the site are from theirs."""
    if len(near.places) < FEWEST:
        return torch.zeros(len(near.places), dtype=torch.bool)
    distance = (1 - near.similarity).clamp(min=0).sqrt().mean(1)
    low, high = distance.quantile(0.25), distance.quantile(0.75)
    return distance > high + FAR * (high - low)
