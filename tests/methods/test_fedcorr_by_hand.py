"""fedcorr:preset=code: one visit, one correction and one step of the server, every number in plain NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.by_hand import one_client, one_server
from tests.plain_numpy import Linear, Mixture, double_softmax, softmax

from fedwinnow.federation import method as federation_method
from fedwinnow.methods.fedcorr import FedCorr

ROWS = np.array([[2.0, 0.1], [1.5, -0.2], [1.0, 0.3], [0.1, 0.9], [0.2, 1.4], [-0.3, 1.1], [0.1, 2.0], [1.9, 0.4]])
GIVEN = [0, 0, 0, 1, 1, 1, 0, 1]  # the last two are wrong
GLOBAL = [1.2, -0.4, -0.5, 0.9, 0.1, 0.0]
RATE, LEASH, MIXED = 0.5, 5 * 0.3, 0.3  # β = 5, an estimated rate of 0.3; MixUp's share


def visited() -> Linear:
    """Two epochs of two batches with MixUp; the leash β μ̂ |w - w_global| from an epoch's second batch on."""
    draws, labels, model = torch.Generator().manual_seed(0), np.eye(2)[GIVEN], Linear(GLOBAL, 2, 2)
    for _ in range(2):
        order = torch.randperm(8, generator=draws).numpy()
        for number, batch in enumerate((order[:4], order[4:])):
            partner = batch[torch.randperm(4, generator=draws).numpy()]
            x = MIXED * ROWS[batch] + (1 - MIXED) * ROWS[partner]
            target = MIXED * labels[batch] + (1 - MIXED) * labels[partner]
            moved = model.flat - np.array(GLOBAL)
            leash = LEASH * moved / np.linalg.norm(moved) if number else 0.0
            model = model.step(x, (softmax(model.logits(x)) - target) / 4, RATE, leash)
    return model


def dimensionality(points: np.ndarray, k: int) -> float:
    """The mean of -k / Σ log(r_i / (r_k + 1e-6))."""
    found = []
    for place, point in enumerate(points):
        away = np.sort(np.linalg.norm(np.delete(points, place, 0) - point, axis=1))[:k]
        found.append(-k / np.log(away / (away[-1] + 1e-6)).sum())
    return float(np.mean(found))


def test_a_visit_and_a_correction(monkeypatch):
    monkeypatch.setattr(federation_method, "beta_draw", lambda alpha, generator: MIXED)
    method = FedCorr(preset="code", lid_neighbours=3)
    client = one_client(ROWS, GIVEN, lr=RATE, epochs=2, batch_size=4)
    reply = method.train_and_measure(client, {"weights": torch.tensor(GLOBAL), "leash": torch.tensor([LEASH])})
    trained = visited()
    assert reply["weights"].tolist() == pytest.approx(trained.flat.tolist(), abs=1e-5)
    losses = double_softmax(trained.logits(ROWS), GIVEN)
    assert client.state["losses"].tolist() == pytest.approx(losses.tolist(), abs=1e-5)
    wanted = dimensionality(softmax(trained.logits(ROWS)), 3)
    assert float(reply["lid"]) == pytest.approx(wanted, rel=1e-3)

    new = [1.4, -0.9, -1.2, 1.0, 0.0, 0.0]  # the global model at the end of the pass
    said = method.correct_labels(client, {"weights": torch.tensor(new), "leash": torch.zeros(1)})
    wrong = Mixture.fitted(losses, tolerance=1e-3, floor=1e-6).low(losses) < 0.5
    assert float(said["rate"]) == wrong.mean() > 0
    count = int(8 * wrong.mean() * 0.5)  # π = 1/2
    assert count >= 1
    p = softmax(Linear(new, 2, 2).logits(ROWS))
    labels = np.array(GIVEN)
    for place in np.argsort(-losses)[:count]:
        labels[place] = p[place].argmax() if p[place].max() > 0.5 else labels[place]
    assert client.state["labels"].tolist() == labels.tolist()
    assert int(said["relabelled"]) == (labels != GIVEN).sum() > 0

    sure = softmax(Linear(GLOBAL, 2, 2).logits(ROWS))  # the end of stage 2: all samples of which the model is sure
    method.relabel_all(client, {"weights": torch.tensor(GLOBAL), "leash": torch.zeros(1)})
    assert client.state["labels"].tolist() == np.where(sure.max(1) > 0.5, sure.argmax(1), labels).tolist()


def test_a_step_of_the_server(tmp_path):
    method, server = FedCorr(preset="code", passes=1), one_server(tmp_path, clients=6, rounds=20)
    method.start(server)
    before, lid = np.array([1.0, 1.1, 0.9, 2.0, 2.3, 1.0]), np.array([1.2, 1.0, 1.1, 2.1, 1.9, 0.8])
    server.state["lid"] = torch.tensor(before)
    models, sizes = np.arange(36.0).reshape(6, 6), np.array([1, 2, 3, 4, 5, 6])
    replies = {
        client: {
            "weights": torch.tensor(models[client]).float(),
            "samples": torch.tensor(sizes[client]),
            "lid": torch.tensor([lid[client]]),
        }
        for client in range(6)
    }
    server.round = 1
    method.merge(server, iter(replies.items()))
    total = before + lid
    assert server.weights["weights"].tolist() == pytest.approx((sizes @ models / 21).tolist())
    assert server.state["lid"].tolist() == pytest.approx(total.tolist())
    clean = Mixture.fitted(total, tolerance=1e-3, floor=1e-6).low(total) >= 0.5
    assert clean.tolist() == [True, True, True, False, False, True]
    assert method.split_clients(server) == [3, 4]
    rates = {3: 0.05, 4: 0.4}
    told = {key: {"rate": torch.tensor([rate]), "relabelled": torch.tensor([1])} for key, rate in rates.items()}
    method.merge_rates(server, iter(told.items()))
    assert server.state["rate"].tolist() == pytest.approx([0, 0, 0, 0.05, 0.4, 0])
    assert [float(method.send(server, client)["leash"]) for client in (0, 3, 4)] == pytest.approx([0, 0.25, 2.0])
    assert method.clean_pool(server) == [0, 1, 2, 3, 5]  # up to κ = 0.1, so a noisy client may be in it
    assert method.noisy_clients(server) == [3, 4]
    server.round = 20
    assert float(method.send(server, 4)["leash"]) == 0  # no leash after stage 1
