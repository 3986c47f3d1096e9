"""How often FedNoRo's ways to split clients find exactly the noisy ones, on tables that are drawn.

    python -m benchmarks.noisy_clients [--tables 20] [--clients 20] [--classes 10]

A table has a row per client and a column per class: the mean losses that clients would send. Clean clients lie around
their class's own level, noisy ones (four in ten) above it, each by its own rate and not alike in all classes.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor

from fedwinnow.mathematics.noisy_clients import noisy_set, prepared
from fedwinnow.methods.fednoro import FedNoRo

WAYS = {
    "`preset=paper`": FedNoRo(),
    "`preset=code`": FedNoRo(preset="code"),
    "`detect=careful`": FedNoRo(detect="careful"),
    "`covariance=diagonal`": FedNoRo(covariance="diagonal"),
}
NOISY_SHARE = 0.4
HELD = 0.9  # the chance that a client holds a class


def drawn(seed: int, clients: int, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Losses per class, which classes a client holds, and who is noisy."""
    luck = torch.Generator().manual_seed(seed)
    noisy = torch.arange(clients) < round(NOISY_SHARE * clients)
    level = 0.3 + torch.rand(1, classes, generator=luck)
    table = level * (1 + 0.2 * torch.randn(clients, classes, generator=luck))
    rate = 0.3 + 0.4 * torch.rand(clients, 1, generator=luck)
    uneven = 0.5 + torch.rand(clients, classes, generator=luck)
    table = table + noisy[:, None] * rate * uneven * 2
    present = torch.rand(clients, classes, generator=luck) < HELD
    present[:, 0] |= ~present.any(1)
    return table.clamp(min=0.01), present, noisy


def found(way: FedNoRo, seed: int, clients: int, classes: int) -> bool:
    """Whether one way finds exactly the noisy clients of one table."""
    table, present, noisy = drawn(seed, clients, classes)
    points = prepared(table, present, normalise=True)
    split, _ = noisy_set(points, way.detect, seed=seed, covariance=way.covariance, measure=way.noisy_mean)
    return torch.equal(split, noisy)


def main(words: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.noisy_clients", description=__doc__)
    parser.add_argument("--tables", type=int, default=20)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--smallest", action="store_true", help="the least work: does it run? Its numbers mean nothing")
    chosen = parser.parse_args(words)
    tables = 1 if chosen.smallest else chosen.tables
    print("| split by | exact set found |\n|---|---|")
    for name, way in WAYS.items():
        hits = sum(found(way, seed, chosen.clients, chosen.classes) for seed in range(tables))
        print(f"| {name} | {hits} of {tables} |")


if __name__ == "__main__":
    main()
