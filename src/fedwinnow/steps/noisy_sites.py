"""Telling noisy sites from clean ones by their losses per class, and giving distant models of noisy ones less weight.

FedNoRo's two ideas; FedELC takes both of them, FedSIR the second. All three judge labels by the role of their site.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedwinnow.federation.client import Client
from fedwinnow.federation.method import Replies, Verdict
from fedwinnow.federation.server import Server
from fedwinnow.mathematics.aggregators import WeightedMean
from fedwinnow.mathematics.gaussian_mixture import Covariance, Measure
from fedwinnow.mathematics.noisy_clients import Detect, noisy_set, prepared
from fedwinnow.mathematics.payload import FlatModel, Payload
from fedwinnow.mathematics.two_gaussians import exact
from fedwinnow.steps.site_labels import sample_losses, upper_half_where_wrong

UNKNOWN, CLEAN, NOISY = -1, 0, 1  # in server.state["role"], one number per site

Distance = Callable[[Tensor, Tensor, FlatModel], Tensor]  # of two models, as vectors


# --- which sites are noisy --------------------------------------------------------------------------------------------


def losses_per_class(client: Client, logits: Tensor) -> Payload:
    """The site's mean cross-entropy per given class, and which classes it holds."""
    losses = exact(sample_losses(logits, client.given))
    sums = losses.new_zeros(client.classes).index_add_(0, client.given.to(losses.device), losses)
    counts = client.class_counts.to(losses.device)
    return {"indicator": (sums / counts.clamp(min=1)).float().cpu(), "present": (counts > 0).cpu()}


def noisy_by_indicator(
    server: Server,
    replies: Replies,
    detect: Detect,
    *,
    normalise: bool = True,
    covariance: Covariance | None = None,
    measure: Measure = "norm",
) -> tuple[list[int], Tensor]:
    """The clients that replied, and which of them are in the component whose mean is larger; both are noted."""
    rows = dict(replies)
    table = torch.stack([reply["indicator"] for reply in rows.values()])
    present = torch.stack([reply["present"] for reply in rows.values()])
    # A missing value is the smallest of its class; then every class is mapped to 0..1 over the clients.
    points = prepared(table, present, normalise)
    noisy, agreement = noisy_set(points, detect, seed=server.seed, covariance=covariance, measure=measure)
    found = [client for client, bad in zip(rows, noisy.tolist(), strict=True) if bad]
    shown = [
        [round(value, 6) if held else None for value, held in zip(*row, strict=True)]
        for row in zip(table.tolist(), present.tolist(), strict=True)
    ]
    server.note(noisy_clients=found, agreement=agreement, measured=list(rows), indicator=shown)
    return list(rows), noisy


def give_roles(server: Server, measured: list[int], noisy: Tensor) -> None:
    """Remember who is clean; a client that did not reply counts as noisy, so that it is nobody's reference."""
    role = server.state["role"]
    role[torch.tensor(server.available)] = NOISY
    role[torch.tensor(measured)] = torch.where(noisy, NOISY, CLEAN)


# --- distance-aware aggregation ---------------------------------------------------------------------------------------


def distance_of_parameters(first: Tensor, second: Tensor, model: FlatModel) -> Tensor:
    """The Euclidean distance of two models, as vectors of their trainable parameters."""
    distance: Tensor = torch.linalg.vector_norm((first - second)[: model.trainable])
    return distance


def distance_per_tensor(first: Tensor, second: Tensor, model: FlatModel) -> Tensor:
    """The sum of the distances of the models' tensors, running statistics included."""
    away = first - second
    return torch.stack([torch.linalg.vector_norm(away[slot.start : slot.stop]) for slot in model.slots]).sum()


def to_nearest_clean(server: Server, models: dict[int, Payload], distance: Distance) -> Tensor:
    """d(i) of a noisy client's model: to the nearest of a clean client of this round; 0 for others, or without one."""
    role = server.state["role"]
    clean = [reply["weights"] for client, reply in models.items() if role[client] != NOISY]
    found = torch.zeros(len(models))
    for place, (client, reply) in enumerate(models.items()):
        if role[client] == NOISY and clean:
            found[place] = min(distance(reply["weights"], other, server.model) for other in clean)
    return found


def nearness(distances: Tensor) -> Tensor:
    """e^(-D(i)), D(i) = d(i) / max d: 1 for a model at distance 0, 1/e for the farthest; 1 if all distances are 0."""
    largest = distances.max()
    return torch.exp(-distances / largest) if float(largest) > 0 else torch.ones_like(distances)


def mean_by_nearness(server: Server, models: dict[int, Payload], distances: Tensor) -> Payload:
    """The mean of the models by n_i e^(-D(i))."""
    mean = WeightedMean(server.weights)
    for near, reply in zip(nearness(distances), models.values(), strict=True):
        mean.add(reply, float(reply["samples"]) * float(near))
    return mean.result()


# --- the verdict on labels --------------------------------------------------------------------------------------------


def verdict_by_role(verdict: Verdict, client: Client, got: Payload, corrected: Tensor | None = None) -> Verdict:
    """On a clean client no label is called wrong; on a noisy one those that it has corrected, if it corrects any."""
    if int(got["role"]) == CLEAN:
        return Verdict(verdict.p_wrong / 2, verdict.suggested)
    if corrected is None:
        return verdict
    labels = client.for_all(corrected, client.given)
    changed = labels != client.given
    return Verdict(upper_half_where_wrong(verdict.p_wrong, changed), torch.where(changed, labels, verdict.suggested))
