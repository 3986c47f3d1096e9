"""fednoro:preset=code: one visit of a noisy client and one step of the server, every number in plain NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tests.by_hand import one_client, one_server
from tests.plain_numpy import Linear, cross_entropies, softmax

from fedwinnow.methods.fednoro import FedNoRo
from fedwinnow.steps.noisy_sites import CLEAN, NOISY

ROWS = np.array([[1.0, 0.0], [0.5, 1.0], [-1.0, 0.5], [0.3, -0.7]])
GIVEN = [0, 0, 1, 0]  # class 2 is absent
GLOBAL = [1.0, 0.2, -0.3, 0.8, 0.4, -0.1, 0.1, 0.0, -0.2]
RATE, SHARE = 0.5, 0.3


def test_a_visit_of_a_noisy_client():
    method, client = FedNoRo(preset="code"), one_client(ROWS, GIVEN, classes=3, lr=RATE, epochs=2)
    got = {"weights": torch.tensor(GLOBAL), "role": torch.tensor([NOISY]), "share": torch.tensor([SHARE])}
    teacher = model = Linear(GLOBAL, 3, 2)
    log_prior = np.array([math.log(3 / 4), math.log(1 / 4), -np.inf])  # by the given labels
    q = softmax(teacher.logits(ROWS) / 0.8)  # the received model, without adjustment
    held = np.array([1.0, 1.0, 0.0])  # the log of an absent class's probability is patched to 0
    losses = []
    for _ in range(2):
        p = softmax(model.logits(ROWS) + log_prior)
        log_p = np.log(np.where(held > 0, p, 1.0))
        divergence = (q * (np.log(q) - log_p)).sum(1)
        losses.append(SHARE * divergence.mean() + (1 - SHARE) * -np.log(p[range(4), GIVEN]).mean())
        # d/dz_c of -Σ_held q log p is p_c Σ_held q - q_c on a class that is held
        slope = SHARE * (p * (q * held).sum(1, keepdims=True) - q * held) + (1 - SHARE) * (p - np.eye(3)[GIVEN])
        model = model.step(ROWS, slope / 4, RATE)
    client.model.load(got)
    other = client.spare() if client.spare else None
    assert other is not None
    with torch.no_grad():
        other.weights.copy_(torch.tensor(GLOBAL))
    x, y = torch.tensor(ROWS).float(), torch.tensor(GIVEN)
    assert method.wanted(client, other, x).exp().numpy() == pytest.approx(q, abs=1e-6)
    assert method.distilled(client, other, SHARE, x, y).item() == pytest.approx(losses[0], abs=1e-5)
    reply = method.train(client, got)
    assert reply["weights"].tolist() == pytest.approx(model.flat.tolist(), abs=1e-5)


def test_what_a_client_tells_of_its_losses():
    client = one_client(ROWS, GIVEN, classes=3)
    reply = FedNoRo(preset="code").measure(client, {"weights": torch.tensor(GLOBAL)})
    losses = cross_entropies(Linear(GLOBAL, 3, 2).logits(ROWS), GIVEN)  # plain: no adjustment
    wanted = [losses[[0, 1, 3]].mean(), losses[2], 0.0]
    assert reply["indicator"].tolist() == pytest.approx(wanted, abs=1e-6)
    assert reply["present"].tolist() == [True, True, False]


def fitted_groups(points: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Which points the second of two Gaussians with full covariances holds; EM from this split."""
    shares = np.stack([~first, first], 1).astype(float)
    for _ in range(100):
        held = shares.sum(0)
        scores = []
        for share, total in zip(shares.T, held, strict=True):
            mean = share @ points / total
            away = points - mean
            covariance = (share[:, None] * away).T @ away / total + 1e-6 * np.eye(points.shape[1])
            quadratic = np.einsum("nd,de,ne->n", away, np.linalg.inv(covariance), away)
            scores.append(np.log(total / len(points)) - 0.5 * (np.linalg.slogdet(covariance)[1] + quadratic))
        table = np.array(scores).T
        shares = np.exp(table - np.logaddexp(*table.T)[:, None])
    return np.asarray(shares[:, 1] > 0.5)


def test_who_is_noisy(tmp_path):
    method, server = FedNoRo(preset="code"), one_server(tmp_path, clients=8)
    method.start(server)
    rng = np.random.RandomState(1)
    table = np.concatenate([rng.normal(0.4, 0.05, (4, 2)), rng.normal(1.6, 0.1, (4, 2))])
    present = np.ones((8, 2), bool)
    present[2, 1] = False  # client 2 lacks class 1
    replies = {
        client: {"indicator": torch.tensor(table[client]).float(), "present": torch.tensor(present[client])}
        for client in range(8)
    }
    method.split_clients(server, iter(replies.items()))
    whole = table.copy()
    whole[2, 1] = table[[0, 1, 3, 4, 5, 6, 7], 1].min()
    points = (whole - whole.min(0)) / (whole.max(0) - whole.min(0))
    groups = fitted_groups(points, points.sum(1) > 1)
    larger = points[groups].mean(0).sum() > points[~groups].mean(0).sum()  # the code compares sums
    noisy = groups if larger else ~groups
    assert noisy.tolist() == [False] * 4 + [True] * 4
    assert server.state["role"].tolist() == [NOISY if bad else CLEAN for bad in noisy]


def test_a_step_of_the_server(tmp_path):
    method, server = FedNoRo(preset="code"), one_server(tmp_path, clients=4, rounds=100)
    server.state["role"] = torch.tensor([CLEAN, CLEAN, NOISY, NOISY])
    server.round = 31
    assert method.share(server) == pytest.approx(0.8 * math.exp(-5 * (1 - (30 - 10) / (49 - 10)) ** 2))  # t = 30
    models = np.array([[0.0, 0, 0, 0, 0, 0], [9, 0, 0, 0, 1, 0], [3, 4, 0, 0, 0, 2], [9, 0, 0, 1, 1, 0]])
    sizes = np.array([10, 20, 30, 40])
    replies = {
        client: {"weights": torch.tensor(models[client]).float(), "samples": torch.tensor(sizes[client])}
        for client in range(4)
    }

    def away(first: int, second: int) -> float:
        """The sum over the two tensors: four weights, two biases."""
        difference = models[first] - models[second]
        return float(np.linalg.norm(difference[:4]) + np.linalg.norm(difference[4:]))

    distances = np.array([0, 0, *(min(away(noisy, clean) for clean in (0, 1)) for noisy in (2, 3))])
    assert distances.tolist() == pytest.approx([0, 0, 7, 1])
    assert method.distances(server, replies).tolist() == pytest.approx(distances.tolist())
    weights = sizes * np.exp(-distances / 7)
    method.merge(server, iter(replies.items()))
    assert server.weights["weights"].tolist() == pytest.approx((weights @ models / weights.sum()).tolist(), abs=1e-5)
