"""Our optimisers are those of torch, to the last bit."""

from __future__ import annotations

import pytest
import torch

from fedwinnow import catalogue
from fedwinnow.errors import UsageError
from fedwinnow.mathematics.optimizers import Optimizer, Sgd

CASES = {
    "sgd:lr=0.1,momentum=0": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd:lr=0.03,momentum=0.5": lambda p: torch.optim.SGD(p, lr=0.03, momentum=0.5),
    "sgd:lr=0.01,momentum=0.9,weight_decay=0.0005": lambda p: torch.optim.SGD(
        p, lr=0.01, momentum=0.9, weight_decay=5e-4
    ),
    "adam:lr=0.001": lambda p: torch.optim.Adam(p, lr=0.001),
    "adam:lr=0.0003,weight_decay=0.0005,beta1=0.8": lambda p: torch.optim.Adam(
        p, lr=3e-4, weight_decay=5e-4, betas=(0.8, 0.999)
    ),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.001, weight_decay=0.01),
    "adamw:lr=0.01,weight_decay=0.3,beta2=0.9": lambda p: torch.optim.AdamW(
        p, lr=0.01, weight_decay=0.3, betas=(0.9, 0.9)
    ),
    "adamw:weight_decay=0": lambda p: torch.optim.AdamW(p, lr=0.001, weight_decay=0),
}


@pytest.mark.parametrize("spec", CASES)
def test_ten_steps_are_equal_bit_for_bit(spec):
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(1003, generator=generator)
    reference = torch.nn.Parameter(weights.clone())
    theirs = CASES[spec]([reference])
    ours = catalogue.make("optimizers", spec)
    assert isinstance(ours, Optimizer)
    gradient = torch.zeros_like(weights)
    step = ours.start(weights, gradient)
    for _ in range(10):
        gradient.copy_(torch.randn(1003, generator=generator))
        reference.grad = gradient.clone()
        theirs.step()
        step()
    assert torch.equal(weights, reference.data)


@pytest.mark.parametrize("spec", CASES)
def test_a_closed_gate_is_a_step_that_is_not_made(spec):
    optimizer = catalogue.make("optimizers", spec)
    assert isinstance(optimizer, Optimizer)
    generator = torch.Generator().manual_seed(0)
    gated = torch.randn(1003, generator=generator)
    plain, gradient, gate = gated.clone(), torch.zeros(1003), torch.tensor(True)
    by_gate, by_hand = optimizer.start_gated(gated, gradient, gate), optimizer.start(plain, gradient)
    for opened in (False, True, True, False, False, True, True):
        gate.fill_(opened)
        gradient.copy_(torch.randn(1003, generator=generator) if opened else torch.full((1003,), torch.nan))
        by_gate()
        if opened:
            by_hand()
        assert torch.allclose(gated, plain, rtol=1e-6, atol=1e-7)
    if optimizer.name == "sgd":
        assert torch.equal(gated, plain)


def test_an_optimiser_without_a_gate_of_its_own_asks_for_it():
    class Slow(Sgd):
        name = "slow"

        def start(self, weights, gradient):
            return lambda: weights.sub_(1)

    weights, gate = torch.zeros(2), torch.tensor(False)
    step = Slow().start_gated(weights, torch.ones(2), gate)
    step()
    assert weights.tolist() == [0, 0]
    gate.fill_(True)
    step()
    assert weights.tolist() == [-1, -1]


def test_one_step_by_hand():
    weights, gradient = torch.tensor([1.0]), torch.tensor([2.0])
    step = catalogue.make("optimizers", "sgd:lr=0.5,momentum=0.5,weight_decay=0.1").start(weights, gradient)
    step()  # change 2 + 0.1 = 2.1, weight 1 - 0.5 * 2.1
    assert weights.item() == pytest.approx(-0.05)
    step()  # change 2 - 0.005 = 1.995, speed 0.5 * 2.1 + 1.995 = 3.045
    assert weights.item() == pytest.approx(-0.05 - 0.5 * 3.045)


@pytest.mark.parametrize(
    ("spec", "rates"),
    [
        ("sgd:lr=0.4", [0.4] * 4),
        # cos(0), cos(pi / 4), cos(pi / 2), cos(3 pi / 4), each plus 1 and halved
        ("sgd:lr=0.4,schedule=cosine", [0.4, 0.4 * (2 + 2**0.5) / 4, 0.2, 0.4 * (2 - 2**0.5) / 4]),
        ("adamw:lr=0.4,schedule=cosine,lowest=0.5", [0.4, 0.4 * (6 + 2**0.5) / 8, 0.3, 0.4 * (6 - 2**0.5) / 8]),
        ("sgd:lr=0.4,schedule=cosine,warm_up=2", [0.4 / 3, 0.8 / 3, 0.4, 0.2]),
        ("adam:lr=0.4,schedule=step,every=2", [0.4, 0.4, 0.04, 0.04]),
        ("sgd:lr=0.4,schedule=step,every=1,factor=0.5,warm_up=1", [0.2, 0.4, 0.2, 0.1]),
        ("sgd:lr=0.4,warm_up=3", [0.1, 0.2, 0.3, 0.4]),
    ],
)
def test_a_schedule_by_hand(spec, rates):
    optimizer = catalogue.make("optimizers", spec)
    assert [optimizer.at_round(number, 4).lr for number in (1, 2, 3, 4)] == pytest.approx(rates)


def test_without_a_schedule_a_round_has_the_very_optimiser():
    optimizer = catalogue.make("optimizers", "sgd:lr=0.4")
    assert optimizer.at_round(3, 10) is optimizer


def test_a_round_keeps_every_other_option():
    optimizer = catalogue.make(
        "optimizers", "sgd:lr=0.4,momentum=0.9,weight_decay=0.1,schedule=step,every=1,factor=0.5"
    )
    assert str(optimizer.at_round(2, 2)) == "sgd:lr=0.2,weight_decay=0.1,momentum=0.9"


@pytest.mark.parametrize("option", ["lowest=0.1", "every=3", "factor=0.5", "schedule=cosine,every=3"])
def test_an_option_of_another_schedule_is_refused(option):
    with pytest.raises(UsageError, match="was given without schedule="):
        catalogue.make("optimizers", f"sgd:{option}")


def test_more_steps_than_a_float_can_hold_are_still_a_learning_rate():
    optimizer = catalogue.make("optimizers", "sgd:schedule=step,every=1,factor=1e-9")
    assert optimizer.at_round(1000, 1000).lr > 0
