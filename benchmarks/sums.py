"""What a secure sum costs: all sites on one core, without any training."""

from __future__ import annotations

import time

import torch

from fedwinnow.federation.summing.secure_sums import Session, sum_here
from fedwinnow.federation.summing.sum_messages import threshold_of
from fedwinnow.mathematics.payload import Summing

CASES = [(3, 1_000_000), (10, 1_000_000), (10, 11_000_000), (30, 100_000), (100, 10_000), (100, 100_000)]
SUMS: dict[str, Summing] = {"weights": "mean", "samples": "sum"}
SHARE = 0.66


def run(*, smallest: bool = False) -> str:
    """A table of seconds by sites and parameters."""
    lines = [
        "| sites | parameters | threshold | seconds, all sites and the server | of these one site's part, about |",
        "| --- | --- | --- | --- | --- |",
    ]
    for sites, parameters in [(3, 10)] if smallest else CASES:
        weights = [torch.randn(parameters) for _ in range(sites)]
        replies = {site: {"weights": one, "samples": torch.tensor(100)} for site, one in enumerate(weights)}
        began = time.perf_counter()
        total = sum_here(replies, SUMS, 0, Session("benchmark", "train", 1, 0, SHARE))
        seconds = time.perf_counter() - began
        error = float((total["weights"].double() - torch.stack(weights).double().mean(0)).abs().max())
        assert error < 1e-6, error
        lines.append(
            f"| {sites} | {parameters:,} | {threshold_of(SHARE, sites)} | {seconds:.2f} | {seconds / sites:.2f} |"
        )
    return "\n".join(lines) + "\n"
