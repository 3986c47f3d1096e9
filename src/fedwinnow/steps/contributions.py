"""How much a client's model is worth, measured by a server that has samples with right labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedwinnow.federation.client import Step
from fedwinnow.federation.server_samples import ServerSamples
from fedwinnow.mathematics.aggregators import WeightedMean, weighted_mean
from fedwinnow.mathematics.payload import FlatModel, Payload
from fedwinnow.mathematics.two_gaussians import exact

Worth = Literal["accuracy", "loss"]
WORST = 1e6  # the loss of a model that predicts NaN or infinity


def worth(bench: ServerSamples, weights: Payload, measure: Worth) -> float:
    """How good a model is on the trusted samples: its accuracy, or minus its mean loss; larger is better."""
    logits = bench.logits(weights)
    if measure == "accuracy":
        return float(exact(logits.argmax(1) == bench.given).mean())
    scores = exact(logits)
    loss = torch.nan_to_num(cross_entropy(scores, bench.given.to(scores.device)), nan=WORST, posinf=WORST)
    return -float(loss.clamp(max=WORST))


def loss_drops(bench: ServerSamples, before: Payload, models: Sequence[Payload]) -> Tensor:
    """How much each client's training lowered the loss on the trusted samples."""
    start = worth(bench, before, "loss")
    return torch.tensor([worth(bench, model, "loss") - start for model in models], dtype=torch.float64)


def shapley_values(
    bench: ServerSamples,
    before: Payload,
    models: Sequence[Payload],
    *,
    permutations: int,
    generator: torch.Generator,
    measure: Worth = "accuracy",
    truncate: float = 0.0,
) -> Tensor:
    """What each model adds to the plain mean of those before it, averaged over random orders.

    Each group is scored once. With `truncate`, an order ends as soon as its group is worth as much as all models
    together, up to this difference: the remaining models count as adding nothing.
    """
    known = {frozenset[int](): worth(bench, before, measure)}

    def worth_of(group: frozenset[int]) -> float:
        if group not in known:
            mean = WeightedMean(before)
            for member in sorted(group):
                mean.add(models[member], 1.0)
            known[group] = worth(bench, mean.result(), measure)
        return known[group]

    everybody = frozenset(range(len(models)))
    gains = torch.zeros(len(models), dtype=torch.float64)
    for _ in range(permutations):
        group = frozenset[int]()
        for member in torch.randperm(len(models), generator=generator).tolist():
            if truncate > 0 and abs(worth_of(everybody) - worth_of(group)) <= truncate:
                break
            gains[member] += worth_of(group | {member}) - worth_of(group)
            group |= {member}
    return gains / permutations


def learned_shares(
    bench: ServerSamples, models: Sequence[Tensor], sizes: Sequence[float], *, steps: int, rate: float
) -> Tensor:
    """The shares with which the weighted mean of the models has the lowest loss on the trusted samples.

    Adam learns the logits of a softmax, which start at the clients' shares of all samples. The gradient by a share is
    the product of the loss's gradient and the client's model.
    """
    start = torch.tensor(sizes, dtype=torch.float64)
    logits = (start / start.sum()).log()
    optimizer = torch.optim.Adam([logits], lr=rate)

    def mix(model: FlatModel) -> None:
        model.load({"weights": weighted_mean(models, logits.softmax(0).tolist()), "counters": model.counters})

    def wrap(_: Step, model: FlatModel) -> Step:
        def step() -> None:
            shares, slope = logits.softmax(0), torch.nan_to_num(model.gradient).cpu()
            along = torch.stack([slope @ one[: model.trainable] for one in models]).double()
            logits.grad = shares * (along - shares @ along)
            optimizer.step()
            mix(model)

        return step

    mix(bench.model)
    rows = torch.randint(len(bench), (steps * bench.training.batch_size,), generator=bench.generator)
    bench.fit(lambda _, x, y: cross_entropy(bench.model.module(x), y), rows=rows, epochs=1, wrap_step=wrap)
    return logits.softmax(0)
