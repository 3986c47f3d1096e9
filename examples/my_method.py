"""Trim: a method of its own in one file. After a warm-up, every site trains on its low-loss samples only.

fedwinnow run --noise uniform:share=0.5,low=0.4,high=0.6 --method examples/my_method.py:keep=0.5
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.nn.functional import cross_entropy

from fedwinnow import Method
from fedwinnow.options import option


@dataclass(frozen=True)
class Trim(Method):
    """FedAvg on the samples whose loss under the received global model is among the site's lowest."""

    name: ClassVar[str] = "trim"
    citation: ClassVar[str] = "the small-loss trick: what a model learns late is more often mislabelled"
    warm_up: int = option(5, "Rounds of plain FedAvg before anything is left out.", at_least=0)
    keep: float = option(0.5, "The share of its samples that a site trains on.", above=0, at_most=1)

    def train(self, client, got):
        if client.round <= self.warm_up:
            return super().train(client, got)
        client.model.load(got)
        losses = cross_entropy(client.predict(), client.given, reduction="none")
        selected = losses <= losses.quantile(self.keep)
        client.note(selected=selected)  # for label precision in rounds.jsonl; it does not leave the site
        rows = torch.arange(len(client))[selected.cpu()]
        client.fit(lambda batch, x, y: self.objective(client, batch, x, y, got), rows=rows)
        return self.reply(client) | {"samples": torch.tensor(len(rows))}
