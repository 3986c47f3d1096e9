"""feddiv:preset=code: one visit of a client and one step of the server, every number in plain NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.by_hand import one_client, one_server
from tests.plain_numpy import Linear, Mixture, double_softmax, softmax, zero_to_one

from fedwinnow.federation import method as federation_method
from fedwinnow.methods.feddiv import MIDDLE, FedDiv

ROWS = np.array([[2.0, 0.1], [1.5, -0.2], [1.0, 0.3], [0.35, 0.85], [0.2, 1.4], [-0.3, 1.1], [0.1, 2.0], [1.9, 0.4]])
GIVEN = [0, 0, 0, 1, 1, 1, 0, 1]  # the last two are wrong
GLOBAL = [2.2, -0.8, -1.0, 1.9, 0.1, 0.0]
FILTER = Mixture([0.1, 0.8], [0.02, 0.03], [0.7, 0.3])
BIAS = np.array([0.6, 0.4])
CACHED = [0, 0, 1, 1, 1, 1, 1, 0]  # the de-biased predictions of the last visit: sample 2 had another class
RATE, MIXED, BATCH = 0.2, 0.3, 3


def epoch(model: Linear, rows: np.ndarray, labels: np.ndarray, draws: torch.Generator) -> Linear:
    """MixUp and L_mix + L_reg, batch by batch."""
    order, targets = rows[torch.randperm(len(rows), generator=draws).numpy()], np.eye(2)[labels]
    for start in range(0, len(order), BATCH):
        batch = order[start : start + BATCH]
        x, target = ROWS[batch], targets[batch]
        if len(batch) > 1:
            partner = batch[torch.randperm(len(batch), generator=draws).numpy()]
            x = MIXED * x + (1 - MIXED) * ROWS[partner]
            target = MIXED * target + (1 - MIXED) * targets[partner]
        p = softmax(model.logits(x))
        wanted = -1 / (2 * p.mean(0)) / len(batch)  # dL_reg/dp of L_reg = Σ (1/C) log((1/C) / q_c), q the mean of p
        regular = p * (wanted - (p * wanted).sum(1, keepdims=True))
        model = model.step(x, (p - target) / len(batch) + regular, RATE)
    return model


@pytest.mark.parametrize("visit", [5, 6])
def test_a_visit_of_a_client(visit, monkeypatch):
    monkeypatch.setattr(federation_method, "beta_draw", lambda alpha, generator: MIXED)
    method = FedDiv(preset="code")
    client = one_client(ROWS, GIVEN, lr=RATE, batch_size=BATCH)
    client.state |= {
        "bias": torch.tensor(BIAS),
        "debiased": torch.tensor(CACHED),
        "visits": torch.tensor([visit - 1]),
    }
    got = {"weights": torch.tensor(GLOBAL), "filter": torch.tensor(FILTER.flat)}
    first = Linear(GLOBAL, 2, 2)
    client.model.load(got)
    predicted = method.predicted(client)
    losses = zero_to_one(double_softmax(first.logits(ROWS), GIVEN))
    p_clean = FILTER.low(losses)
    assert method.p_clean(predicted, client.given, got["filter"]).numpy() == pytest.approx(p_clean, abs=1e-5)
    clean, guess = p_clean > 0.5, first.logits(ROWS).argmax(1)
    assert clean.tolist() == [True] * 6 + [False] * 2  # a quarter is noisy: above 0.1 and above 0.2
    relabelled = ~clean if visit >= 6 else np.zeros(8, bool)  # at confidence 0, and from the sixth visit on
    agreed = np.array(CACHED) == guess
    chosen = (clean | relabelled) & (agreed if visit >= 6 else True)
    labels = np.where(relabelled, guess, GIVEN)
    assert chosen.sum() == (7 if visit >= 6 else 6)
    lasting = np.where(~clean & agreed, guess, GIVEN)  # these labels stay, also on early visits
    assert (lasting != GIVEN).sum() == 2

    reply = method.train(client, got)
    trained = epoch(first, chosen.nonzero()[0], labels, torch.Generator().manual_seed(0))
    assert reply["weights"].tolist() == pytest.approx(trained.flat.tolist(), abs=1e-5)
    assert client.notes["selected"].tolist() == clean.tolist()
    assert client.state["labels"].tolist() == lasting.tolist()
    assert int(client.state["visits"]) == visit

    debiased = trained.logits(ROWS) - 0.2 * np.log(BIAS)  # ξ = 0.2
    assert client.state["debiased"].tolist() == debiased.argmax(1).tolist()
    sure = softmax(debiased).max(1) > 0.85
    assert 0 < sure.sum() < 8
    bias = 0.5 * BIAS + 0.5 * softmax(trained.logits(ROWS))[sure].mean(0)  # m = 0.5
    assert client.state["bias"].tolist() == pytest.approx(bias.tolist(), abs=1e-5)

    losses, mixture = zero_to_one(double_softmax(trained.logits(ROWS), lasting)), FILTER
    for _ in range(3):
        mixture = Mixture.from_shares(losses, mixture.low(losses), 1e-6)
    assert reply["mixture"].tolist() == pytest.approx(mixture.flat.tolist(), abs=1e-4)
    assert int(reply["samples"]) == 8  # the weight is the size of the site, not of the selection


def test_a_client_with_no_more_than_a_batch_returns_what_it_got():
    client = one_client(ROWS, GIVEN, lr=RATE, batch_size=6)
    got = {"weights": torch.tensor(GLOBAL), "filter": torch.tensor(FILTER.flat)}
    assert FedDiv(preset="code").train(client, got)["weights"].tolist() == got["weights"].tolist()


def test_a_step_of_the_server(tmp_path):
    method, server = FedDiv(preset="code"), one_server(tmp_path, clients=4, rounds=100)
    method.start(server)
    assert server.state["filter"].tolist() == list(MIDDLE)
    server.round = 50
    mixtures = np.array([[0.1, 0.9, 0.01, 0.02, 0.7, 0.3], [0.2, 0.7, 0.03, 0.02, 0.5, 0.5]])
    cached = np.array([0.15, 0.8, 0.02, 0.04, 0.6, 0.4])  # client 3, from an earlier round
    server.state["mixtures"][3], server.state["sizes"][3] = torch.tensor(cached), 40.0
    models, sizes = np.array([[1.0, 2, 3, 4, 5, 6], [6, 5, 4, 3, 2, 1]]), np.array([10, 30])
    replies = {
        client: {
            "weights": torch.tensor(models[client]).float(),
            "samples": torch.tensor(sizes[client]),
            "mixture": torch.tensor(mixtures[client]),
        }
        for client in range(2)
    }
    method.merge(server, iter(replies.items()))
    assert server.weights["weights"].tolist() == pytest.approx((sizes @ models / 40).tolist())
    every, shares = np.array([*mixtures, cached]), np.array([10, 30, 40]) / 80  # client 2 was never visited
    wanted = shares @ every
    wanted[2:4] = shares**2 @ every[:, 2:4]  # the code squares the shares of variances
    assert server.state["filter"].tolist() == pytest.approx(wanted.tolist())
    assert server.state["mixtures"][:2].tolist() == mixtures.tolist()
    assert method.send(server, 2)["filter"].tolist() == server.state["filter"].tolist()
