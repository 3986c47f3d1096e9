"""fedrn:preset=code: one visit of a client and one step of the server, every number in plain NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.by_hand import one_client, one_server
from tests.plain_numpy import Linear, Mixture, cross_entropies, softmax, zero_to_one

from fedwinnow.methods.fedrn import FedRn, tune_head

ROWS = np.array([[2.0, 0.1], [1.5, -0.2], [1.0, 0.3], [0.8, 0.9], [0.2, 1.4], [-0.3, 1.1], [0.1, 2.0], [1.2, 0.4]])
GIVEN = [0, 0, 0, 1, 1, 1, 0, 1]  # the last two are wrong
OWN, NEIGHBOUR = [1.2, -0.4, -0.5, 0.9, 0.1, 0.0], [0.4, 0.2, -0.3, 0.6, 0.0, 0.2]
GLOBAL = [0.5, 0.0, 0.1, 0.4, 0.0, 0.0]
RATE, RELIABILITY = 0.5, np.array([0.55, 0.45])


def p_clean_of(model: Linear) -> np.ndarray:
    """Losses to 0..1, a mixture (tolerance 0.01, variances from 0.0005), the small component."""
    losses = zero_to_one(cross_entropies(model.logits(ROWS), GIVEN))
    return Mixture.fitted(losses, tolerance=1e-2, floor=5e-4).low(losses)


def learned(model: Linear, chosen: np.ndarray) -> Linear:
    """One step of gradient descent on the mean cross-entropy of these rows."""
    rows, labels = ROWS[chosen], np.array(GIVEN)[chosen]
    return model.step(rows, (softmax(model.logits(rows)) - np.eye(2)[labels]) / len(rows), RATE)


def test_a_visit_of_a_client():
    method, client = FedRn(preset="code", neighbours=1), one_client(ROWS, GIVEN, lr=RATE)
    client.state["last"] = torch.tensor(OWN)
    got = {
        "weights": torch.tensor(GLOBAL),
        "input_seed": torch.tensor([7]),
        "neighbour0.weights": torch.tensor(NEIGHBOUR),
        "reliability": torch.tensor(RELIABILITY),
    }
    own = Linear(OWN, 2, 2)
    assert method.posterior(client, method.own_model(client, got)).numpy() == pytest.approx(p_clean_of(own), abs=1e-5)
    auxiliary = p_clean_of(own) > 0.5
    assert 0 < auxiliary.sum() < len(GIVEN)
    tuned = learned(Linear(NEIGHBOUR, 2, 2), auxiliary)  # the head is the whole of a linear model
    client.model.load(got, "neighbour0.")
    tune_head(client, client.model, torch.tensor(auxiliary.nonzero()[0]))
    assert client.model.weights.tolist() == pytest.approx(tuned.flat.tolist(), abs=1e-6)
    assert method.posterior(client, client.model).numpy() == pytest.approx(p_clean_of(tuned), abs=1e-5)
    together = RELIABILITY[0] * p_clean_of(own) + RELIABILITY[1] * p_clean_of(tuned)
    assert method.p_clean(client, got).numpy() == pytest.approx(together, abs=1e-5)
    clean = together > 0.5
    assert 0 < clean.sum() < len(GIVEN)
    reply = method.train(client, got)
    trained = learned(Linear(GLOBAL, 2, 2), clean)
    assert client.notes["selected"].tolist() == clean.tolist()
    assert reply["weights"].tolist() == pytest.approx(trained.flat.tolist(), abs=1e-6)
    assert client.state["last"].tolist() == reply["weights"].tolist()
    right = trained.logits(ROWS).argmax(1) == GIVEN
    assert float(reply["accuracy"]) == pytest.approx(right.mean())
    noise = torch.randn(1, 2, generator=torch.Generator().manual_seed(7)).numpy()
    assert reply["output"].tolist() == pytest.approx(trained.logits(noise)[0].tolist(), abs=1e-6)  # logits, in the code


def test_a_step_of_the_server(tmp_path):
    method, server = FedRn(preset="code", neighbours=2, warm_up=0), one_server(tmp_path, clients=4)
    method.start(server)
    server.round = 3
    models = np.array([[1.0, 0, 0, 1, 0, 0], [2, 0, 0, 0, 0, 1], [0, 3, 1, 0, 0, 0]])
    sizes, accuracy = np.array([10, 30, 20]), np.array([0.5, 0.9, 0.7])
    outputs = np.array([[1.0, 2.0], [2.0, -1.0], [3.0, 4.0]])
    replies = {
        client: {
            "weights": torch.tensor(models[client]).float(),
            "samples": torch.tensor(sizes[client]),
            "accuracy": torch.tensor([accuracy[client]]),
            "output": torch.tensor(outputs[client]).float(),
        }
        for client in range(3)
    }
    method.merge(server, iter(replies.items()))
    server.settle()
    assert server.weights["weights"].tolist() == pytest.approx((sizes @ models / 60).tolist())
    expertise = (accuracy - 0.5) / 0.4  # client 3 has not replied yet and is nobody's neighbour
    lengths = np.linalg.norm(outputs, axis=1)
    similarity = zero_to_one(outputs @ outputs[0] / lengths / lengths[0])
    reliability = 0.6 * expertise + 0.4 * similarity
    best = sorted([1, 2], key=lambda other: -reliability[other])
    members, weights = method.reliable(server, 0)
    assert members == best
    wanted = reliability[[0, *best]] / reliability.sum()
    assert weights.tolist() == pytest.approx(wanted.tolist(), abs=1e-6)
    sent = method.send(server, 0)
    assert sent["reliability"].tolist() == weights.tolist()
    assert [sent[f"neighbour{place}.weights"].tolist() for place in range(2)] == models[best].tolist()
    assert "reliability" not in method.send(server, 3)
