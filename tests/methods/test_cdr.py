"""cdr: masked and scaled gradients by hand, and the shared tester."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from torch.nn.functional import cross_entropy

from by_hand import identity, one_client
from fedwinnow.mathematics.optimizers import Sgd
from fedwinnow.methods.cdr import Cdr
from fedwinnow.testing import MethodTester


class TestCdr(MethodTester):
    method: ClassVar[str] = "cdr"

    def test_its_other_options(self, tmp_path):
        method = "cdr:rate_from=estimated,frozen=update,weights_only=false,ramp=3"
        assert self.play(tmp_path, method=method).summary["status"] == "finished"


ROWS, LABELS = [[2.0, 1.0], [0.5, 1.0], [1.0, 3.0]], [0, 1, 0]
WEIGHTS = torch.tensor([1.0, -2.0, 0.5, 0.1, 0.3, -0.3])  # two by two, then two biases


def gradient(weights=WEIGHTS):
    leaf = weights.clone().requires_grad_()
    logits = torch.tensor(ROWS) @ leaf[:4].view(2, 2).T + leaf[4:]
    cross_entropy(logits, torch.tensor(LABELS)).backward()
    return leaf.grad


def trained(method: Cdr, **training) -> torch.Tensor:
    client = one_client(ROWS, LABELS, **training)
    return method.train(client, {"weights": WEIGHTS})["weights"]


def test_the_most_critical_weights_step_by_less_and_the_others_not():
    slope = gradient()
    critical = (slope * WEIGHTS)[:4].abs()
    mask = critical >= critical.sort(descending=True).values[2]  # three of four: tau = 1/4
    factor = torch.cat([0.75 * mask, torch.ones(2)])  # biases are not looked at
    assert torch.allclose(trained(Cdr(noise_rate=0.25)), WEIGHTS - 0.1 * factor * slope, atol=1e-6)


def test_all_parameters_compete_where_asked_for():
    slope = gradient()
    critical = (slope * WEIGHTS).abs()
    factor = 0.5 * (critical >= critical.sort(descending=True).values[2])  # three of six
    found = trained(Cdr(noise_rate=0.5, weights_only=False))
    assert torch.allclose(found, WEIGHTS - 0.1 * factor * slope, atol=1e-6)


def test_at_rate_0_it_is_the_usual_step_and_at_rate_1_only_biases_move():
    assert torch.allclose(trained(Cdr(noise_rate=0.0)), WEIGHTS - 0.1 * gradient(), atol=1e-6)
    found = trained(Cdr(noise_rate=1.0))
    assert torch.equal(found[:4], WEIGHTS[:4])
    assert not torch.equal(found[4:], WEIGHTS[4:])


def test_decay_moves_the_rest_unless_the_update_is_masked():
    for frozen, expected in (("gradient", WEIGHTS * (1 - 0.1 * 0.5)), ("update", WEIGHTS)):
        client = one_client(ROWS, LABELS)
        client.optimizer = Sgd(lr=0.1, momentum=0.0, weight_decay=0.5)
        method = Cdr(noise_rate=1.0, weights_only=False, frozen=frozen)
        assert torch.allclose(method.train(client, {"weights": WEIGHTS})["weights"], expected)


def test_the_rate_grows_where_asked_for():
    client = one_client(ROWS, LABELS)
    client.round = 1
    started = Cdr(noise_rate=1.0, ramp=3).train(client, {"weights": WEIGHTS})["weights"]
    assert torch.allclose(started, WEIGHTS - 0.1 * gradient(), atol=1e-6)
    client.round = 3
    assert torch.equal(Cdr(noise_rate=1.0, ramp=3).train(client, {"weights": WEIGHTS})["weights"][:4], WEIGHTS[:4])


def test_an_estimated_rate_is_that_of_the_own_losses():
    client = one_client([[3.0, 0.0], [3.1, 0.0], [0.0, 3.0], [3.0, 0.0]], [0, 0, 1, 1])
    client.model.load(identity())
    assert Cdr(rate_from="estimated").rate(client) == pytest.approx(0.25)
    assert Cdr().rate(client) == 0.2


def test_its_cost_is_that_of_fedavg():
    client = one_client(ROWS, LABELS, epochs=2)
    Cdr().train(client, {"weights": WEIGHTS})
    assert (client.forward_samples, client.backward_samples) == (6, 6)
