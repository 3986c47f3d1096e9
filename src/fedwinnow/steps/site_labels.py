"""What several methods do with a site's samples and labels: losses, relabelling, a history of each sample."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from fedwinnow.federation.client import Client

LossKind = Literal["cross_entropy", "double_softmax"]


def sample_losses(logits: Tensor, labels: Tensor, kind: LossKind = "cross_entropy") -> Tensor:
    """Cross-entropy per sample; `double_softmax` does as some released codes, which take the softmax twice.

    The double softmax is -p_y + log sum exp p_c, which is bounded in a band of width 1.
    """
    scores = logits.softmax(1) if kind == "double_softmax" else logits
    return functional.cross_entropy(scores, labels, reduction="none")


def mean_over_visits(client: Client, losses: Tensor) -> Tensor:
    """Add the losses of this visit to the running mean of each sample, which the site keeps, and return the mean."""
    visits = client.state.get("visits", torch.zeros(1)) + 1
    before = client.state.get("mean_loss", torch.zeros_like(losses))
    client.state["visits"] = visits
    client.state["mean_loss"] = mean = before + (losses - before) / visits
    return mean


NOTHING = -1  # the label of a sample that has none


def confident_labels(logits: Tensor, labels: Tensor, threshold: float, among: Tensor) -> Tensor:
    """The labels; those in `among` are replaced by the prediction where its probability exceeds the threshold."""
    probability, predicted = logits.softmax(1).max(1)
    return torch.where(among & (probability > threshold), predicted, labels)


def sure_guesses(logits: Tensor, threshold: float) -> Tensor:
    """The predicted class where its probability exceeds the threshold, else NOTHING."""
    probability, predicted = logits.softmax(1).max(1)
    return torch.where(probability > threshold, predicted, NOTHING)


def current_labels(client: Client) -> Tensor:
    """The site's labels as corrected so far; at first as given."""
    return client.state.get("labels", client.given.cpu()).to(client.given.device)


def upper_half_where_wrong(p_wrong: Tensor, wrong: Tensor) -> Tensor:
    """Probabilities moved to the upper half where a method calls a label wrong, to the lower half elsewhere."""
    return torch.where(wrong, 0.5 + p_wrong / 2, p_wrong / 2)


def largest(values: Tensor, count: int) -> Tensor:
    """A mask of the `count` largest values; equal values are taken in order."""
    mask = torch.zeros(len(values), dtype=torch.bool, device=values.device)
    mask[values.argsort(descending=True, stable=True)[:count]] = True
    return mask


class History:
    """The last `length` records of every sample; the site's memory holds them between rounds.

    An empty place holds 0. With `whole`, empty places count as records, as in some released codes.
    """

    def __init__(self, client: Client, name: str, length: int, *width: int, dtype: torch.dtype = torch.float32) -> None:
        device, samples = client.given.device, len(client)
        empty = torch.zeros(samples, length, *width, dtype=dtype)
        self.records = client.state.setdefault(name, empty).to(device)
        self.seen = client.state.setdefault(f"{name}.seen", torch.zeros(samples, dtype=torch.int64)).to(device)
        client.state |= {name: self.records, f"{name}.seen": self.seen}
        self.length = length

    def add(self, rows: Tensor, values: Tensor) -> None:
        """One more record of these samples."""
        rows = rows.to(self.seen.device)
        self.records[rows, self.seen[rows] % self.length] = values.detach().to(self.records.dtype)
        self.seen[rows] += 1

    @property
    def full(self) -> Tensor:
        """Which samples have no empty place."""
        return self.seen >= self.length

    def counted(self, *, whole: bool) -> Tensor:
        """How many records of each sample count, at least 1."""
        seen = torch.full_like(self.seen, self.length) if whole else self.seen
        return seen.clamp(1, self.length)

    def mean(self, *, whole: bool = False) -> Tensor:
        """The mean record of every sample; 0 where there is none."""
        count = self.counted(whole=whole)
        return self.records.sum(1) / count.view(-1, *[1] * (self.records.dim() - 2))

    def frequencies(self, rows: Tensor, classes: int, *, whole: bool = False) -> Tensor:
        """The share of each class among the records of these samples, where a record is a class."""
        rows = rows.to(self.seen.device)
        count = self.counted(whole=whole)[rows].unsqueeze(1)
        there = torch.arange(self.length, device=count.device) < count
        tally = torch.zeros(len(rows), classes, device=count.device)
        return tally.scatter_add_(1, self.records[rows], there.to(tally)) / there.sum(1, keepdim=True)


def uncertainty(frequencies: Tensor) -> Tensor:
    """The entropy of each row, from 0 (always the same class) to 1 (every class equally often)."""
    total: Tensor = torch.special.entr(frequencies).sum(1)
    return total / math.log(frequencies.shape[1])
