"""What a site remembers of each of its samples: the last few records, the oldest making room for the newest."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedwinnow.federation.client import Client


class History:
    """The last `length` records of every sample; the site's memory holds them between rounds.

    A place that is still empty holds 0. `whole` in what follows counts such places as records, as released codes do.
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
    """The entropy of each row over that of a uniform one: 0 is always the same class, 1 any class equally often."""
    total: Tensor = torch.special.entr(frequencies).sum(1)
    return total / math.log(frequencies.shape[1])
