"""Our optimisers are those of torch, to the last bit."""

from __future__ import annotations

import pytest
import torch

from fedwinnow import catalogue
from fedwinnow.mathematics.optimizers import Optimizer

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


def test_one_step_by_hand():
    weights, gradient = torch.tensor([1.0]), torch.tensor([2.0])
    step = catalogue.make("optimizers", "sgd:lr=0.5,momentum=0.5,weight_decay=0.1").start(weights, gradient)
    step()  # change 2 + 0.1 = 2.1, weight 1 - 0.5 * 2.1
    assert weights.item() == pytest.approx(-0.05)
    step()  # change 2 - 0.005 = 1.995, speed 0.5 * 2.1 + 1.995 = 3.045
    assert weights.item() == pytest.approx(-0.05 - 0.5 * 3.045)
