"""Criticality: masks and scaled steps by hand, and Theorem 1 of FedES in numbers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedwinnow.mathematics.optimizers import Sgd
from fedwinnow.mathematics.payload import FlatModel
from fedwinnow.steps.criticality import chosen_parameters, most_critical, scaled_steps


@pytest.mark.parametrize(
    ("share", "mask"),
    [
        (1.0, [1, 1, 1, 1]),
        (0.74, [1, 0, 0, 1]),  # 2.96 parameters are 2
        (0.75, [1, 1, 1, 1]),  # the third largest is 2, and so is another one
        (0.25, [0, 0, 0, 1]),
        (0.24, [0, 0, 0, 0]),  # less than one parameter
        (0.0, [0, 0, 0, 0]),
    ],
)
def test_masks_by_hand(share, mask):
    assert most_critical(torch.tensor([3.0, 2.0, 2.0, 7.0]), share).int().tolist() == mask


def test_weights_only_leaves_biases_and_normalisation_out():
    model = FlatModel(nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 1)))
    # convolution 2 weights and 2 biases, normalisation 2 and 2, linear 2 and 1
    assert chosen_parameters(model, weights_only=True).int().tolist() == [1, 1, 0, 0, 0, 0, 0, 0, 1, 1, 0]
    assert bool(chosen_parameters(model, weights_only=False).all())
    assert model.trainable == 11


# --- steps ------------------------------------------------------------------------------------------------------------


def stepped(optimizer: Sgd, factor: list[float], *, gradient: bool, steps: int = 1) -> list[float]:
    """Weights [1, 2] after steps along the gradient [10, 10]."""
    model = FlatModel(nn.Linear(2, 1, bias=False))
    model.weights.copy_(torch.tensor([1.0, 2.0]))
    share = torch.tensor(factor)
    wrap_step = scaled_steps(lambda _: share, gradient=gradient)
    step = wrap_step(optimizer.start(model.weights, model.gradient), model)
    for _ in range(steps):
        model.gradient.fill_(10.0)
        step()
    return model.weights.tolist()


def test_a_scaled_step_by_hand():
    # eq. (16): 1 - 0.01 * 0.5 * 10, and 2 stays
    assert stepped(Sgd(lr=0.01, momentum=0.0), [0.5, 0.0], gradient=False) == pytest.approx([0.95, 2.0])
    assert stepped(Sgd(lr=0.01, momentum=0.0), [0.5, 0.0], gradient=True) == pytest.approx([0.95, 2.0])


def test_frozen_means_frozen_unless_only_the_gradient_is_masked():
    decaying = Sgd(lr=0.1, momentum=0.9, weight_decay=0.5)
    assert stepped(decaying, [1.0, 0.0], gradient=False, steps=3)[1] == 2.0
    # decay alone: 2 - 0.1 * 0.5 * 2
    assert stepped(decaying, [1.0, 0.0], gradient=True)[1] == pytest.approx(1.9)


def test_the_factor_one_changes_nothing_to_the_last_bit():
    optimizer = Sgd(lr=0.03, momentum=0.9, weight_decay=5e-4)
    assert stepped(optimizer, [1.0, 1.0], gradient=False, steps=5) == stepped(
        optimizer, [1.0, 1.0], gradient=True, steps=5
    )


@pytest.mark.parametrize("rho", [0.0, 0.3, 0.7, 1.0])
def test_theorem_1_to_first_order(rho):
    torch.manual_seed(0)
    x, y = torch.randn(40, 5), torch.randint(3, (40,))
    model = FlatModel(nn.Linear(5, 3))
    nn.functional.cross_entropy(model.module(x), y).backward()
    gradient, start = model.gradient.clone(), model.weights.clone()
    mask = most_critical((gradient * start).abs(), rho)

    def loss_after(lr: float, factor: torch.Tensor) -> float:
        model.weights.copy_(start)
        wrap_step = scaled_steps(lambda _: factor, gradient=False)
        wrap_step(Sgd(lr=lr, momentum=0.0).start(model.weights, model.gradient), model)()
        weight, bias = model.weights.double().split([15, 3])
        return float(nn.functional.cross_entropy(x.double() @ weight.view(3, 5).T + bias, y))

    def relative_error(lr: float) -> float:
        # eq. (17): lr * (sum over M=1 of (1 - rho) grad^2 + sum over M=0 of grad^2)
        squares = gradient.double().square()
        promised = lr * float((1 - rho) * squares[mask].sum() + squares[~mask].sum())
        return abs(loss_after(lr, rho * mask.float()) - loss_after(lr, torch.ones(18)) - promised) / (
            lr * squares.sum()
        )

    assert relative_error(0.01) < 0.02
    assert rho == 1.0 or relative_error(0.01) < relative_error(0.1)  # the rest is of higher order
