"""The gradient of heads: by hand on paper, against finite differences, and against automatic differentiation."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from fedwinnow import catalogue
from fedwinnow.mathematics.heads import Head, Layer
from fedwinnow.mathematics.loss_of_logits import LossOfLogits
from fedwinnow.mathematics.losses import CrossEntropy, Loss
from fedwinnow.mathematics.optimizers import Adam, Sgd
from fedwinnow.mathematics.payload import FlatModel
from fedwinnow.models.make_model import make_model
from fedwinnow.models.model import Shape

LOSSES = ["cross_entropy", "gce", "gce:q=1", "gce:q=0.3", "sce", "sce:alpha=1,beta=0.3", "logit_adjustment:tau=2"]
COUNTS = torch.tensor([5, 0, 2])


def exact_head(sizes: list[int], *, bias: bool = True) -> tuple[Head, Tensor, Tensor]:
    """A head in double precision, its weights and its gradient as vectors."""
    generator = torch.Generator().manual_seed(1)
    count = sum(a * b + (b if bias else 0) for a, b in itertools.pairwise(sizes))
    vector = torch.randn(count, dtype=torch.float64, generator=generator)
    gradient, start, layers = torch.full((count,), torch.nan, dtype=torch.float64), 0, []
    for before, after in itertools.pairwise(sizes):
        middle = start + before * after
        stop = middle + (after if bias else 0)
        views = [(v[start:middle].view(after, before), v[middle:stop] if bias else None) for v in (vector, gradient)]
        layers.append(Layer(views[0][0], views[0][1], views[1][0], views[1][1]))
        start = stop
    return Head(layers), vector, gradient


def loss_of(spec: str) -> Loss:
    made = catalogue.make("losses", spec)
    assert isinstance(made, Loss)
    return made


@pytest.mark.parametrize("spec", LOSSES)
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize(("sizes", "bias"), [([4, 3], True), ([4, 3], False), ([4, 5, 3], True), ([4, 5, 3], False)])
def test_against_finite_differences(spec, soft, sizes, bias):
    head, vector, gradient = exact_head(sizes, bias=bias)
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(6, 4, dtype=torch.float64, generator=generator)
    target = torch.tensor([0, 1, 2, 2, 0, 1])
    if soft:
        target = torch.rand(6, 3, dtype=torch.float64, generator=generator)  # rows need not sum to 1
    criterion = loss_of(spec)
    logits, inputs = head.forward(x)
    head.backward(x, inputs, criterion.slope(logits, target, COUNTS))
    assert bool(torch.isfinite(gradient).all())  # what was there before is not read
    step, expected = 1e-6, torch.empty_like(vector)
    for place in range(len(vector)):
        values = []
        for sign in (1, -1):
            vector[place] += sign * step
            values.append(criterion.mean(head.logits(x), target, COUNTS).item())
            vector[place] -= sign * step
        expected[place] = (values[0] - values[1]) / (2 * step)
    assert torch.allclose(gradient, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("spec", LOSSES)
@pytest.mark.parametrize("samples", [1, 7])
def test_a_slope_is_that_of_automatic_differentiation(spec, samples):
    generator = torch.Generator().manual_seed(0)
    # the first row is so sure that the other probabilities are below the least one
    logits = torch.randn(samples, 3, generator=generator, dtype=torch.float64)
    logits[0] = torch.tensor([40.0, 0.0, -3.0])
    for target in (torch.arange(samples) % 3, torch.softmax(logits.flip(1), 1), (torch.arange(samples) + 1) % 3):
        given = logits.clone()
        assert torch.allclose(
            loss_of(spec).slope(given, target, COUNTS), Loss.slope(loss_of(spec), logits, target, COUNTS)
        )
        assert torch.equal(given, logits)  # nothing is overwritten


def test_on_paper():
    # x = (1, 2), all weights 0: p = (1/2, 1/2), the label is 0, so the slope of the logits is (-1/2, 1/2)
    model = FlatModel(nn.Linear(2, 2), fast_heads=True)
    model.weights.zero_()
    assert model.head is not None
    loss = LossOfLogits(CrossEntropy(), torch.ones(2))
    loss.differentiate(model.head, model, torch.tensor([[1.0, 2.0]]), torch.tensor([0]))
    assert model.gradient.tolist() == [-0.5, -1.0, 0.5, 1.0, -0.5, 0.5]
    # half of that is kept: -0.25 - 0.5 and so on
    loss.differentiate(model.head, model, torch.tensor([[1.0, 2.0]]), torch.tensor([0]), 0.5)
    assert model.gradient.tolist() == [-0.75, -1.5, 0.75, 1.5, -0.75, 0.75]
    # a shift of log 3 to class 0: p = (3/4, 1/4)
    shifted = LossOfLogits(CrossEntropy(), torch.ones(2), shift=torch.tensor([math.log(3.0), 0.0]))
    shifted.differentiate(model.head, model, torch.tensor([[1.0, 2.0]]), torch.tensor([0]))
    assert model.gradient.tolist() == pytest.approx([-0.25, -0.5, 0.25, 0.5, -0.25, 0.25])


def test_relu_passes_nothing_where_it_is_0():
    # hidden units: 1 * 1 = 1 and -1 * 1 = -1, so the second is off and its weights have no gradient
    model = FlatModel(make_model("mlp:hidden=2", Shape("rows", (1,), 2)), fast_heads=True)
    model.weights.copy_(torch.tensor([1.0, -1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]))
    assert model.head is not None
    LossOfLogits(CrossEntropy(), torch.ones(2)).differentiate(
        model.head, model, torch.tensor([[1.0]]), torch.tensor([1])
    )
    p = 1 / (1 + math.exp(-1.0))  # logits (1, 0)
    assert model.gradient.tolist() == pytest.approx([p, 0.0, p, 0.0, p, 0.0, -p, 0.0, p, -p])


@pytest.mark.parametrize("model", ["linear", "mlp:hidden=9"])
def test_a_value_that_is_no_number_is_noticed(model):
    shape = Shape("rows", (3,), 3)
    flat = FlatModel(make_model(model, shape), fast_heads=True)
    assert flat.head is not None
    x = torch.ones(2, 3)
    x[1, 1] = torch.nan
    LossOfLogits(CrossEntropy(), COUNTS).differentiate(flat.head, flat, x, torch.tensor([0, 1]))
    flat_usual = FlatModel(make_model(model, shape))
    nn.functional.cross_entropy(flat_usual.module(x), torch.tensor([0, 1])).backward()
    assert bool(torch.isnan(flat_usual.gradient).any())
    assert torch.equal(torch.isnan(flat.gradient), torch.isnan(flat_usual.gradient))


class Twisted(nn.Linear):
    """A linear layer that does something else."""

    def forward(self, x: Tensor) -> Tensor:
        return -super().forward(x)


def listened() -> nn.Module:
    module = nn.Linear(4, 3)
    module.register_forward_hook(lambda layer, given, output: output * 2)
    return module


def tied() -> nn.Module:
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    module[2].weight = module[0].weight
    return module


def partly_frozen() -> nn.Module:
    module = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    module[0].weight.requires_grad_(False)
    return module


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Dropout(0.5), nn.Linear(5, 3)),
        nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 3)),
        nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)),
        nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)),
        nn.Sequential(nn.Flatten(0), nn.Linear(4, 3)),
        nn.Conv2d(1, 2, 1),
        Twisted(4, 3),
        listened(),
        tied(),
        partly_frozen(),
    ],
)
def test_what_is_no_head(module):
    assert FlatModel(module, fast_heads=True).head is None


def test_nobody_gets_a_head_without_asking():
    assert FlatModel(nn.Linear(2, 2)).head is None
    assert FlatModel(nn.Linear(2, 2), fast_heads=True).head is not None


@dataclass(frozen=True)
class Doubled(CrossEntropy):
    """A loss that a user derived from another, without a word about its gradient."""

    name: ClassVar[str] = "doubled"

    def mean(self, logits: Tensor, target: Tensor, class_counts: Tensor) -> Tensor:
        return 2 * super().mean(logits, target, class_counts)


def test_a_loss_does_not_inherit_the_gradient_of_another():
    logits, target = torch.tensor([[0.0, 0.0]]), torch.tensor([0])
    assert CrossEntropy().slope(logits, target, torch.ones(2)).tolist() == [[-0.5, 0.5]]
    assert Doubled().slope(logits, target, torch.ones(2)).tolist() == [[-1.0, 1.0]]


def test_momentum_as_a_sum_that_the_gradient_keeps():
    assert Sgd(lr=0.1, momentum=0.9).without_momentum() == (Sgd(lr=0.1, momentum=0.0), 0.9)
    decaying, adam = Sgd(lr=0.1, momentum=0.9, weight_decay=0.1), Adam()
    assert decaying.without_momentum() == (decaying, 0.0)
    assert adam.without_momentum() == (adam, 0.0)
