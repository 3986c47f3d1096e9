"""Clipped gradients of single samples: by hand and by torch.func the same, each limited, none dependent on others."""

from __future__ import annotations

import pytest
import torch

from fedwinnow import catalogue
from fedwinnow.mathematics.losses import CrossEntropy
from fedwinnow.mathematics.payload import FlatModel
from fedwinnow.mathematics.private_gradients import clipped_sum, clipped_update, mixing_layers, whole_update
from fedwinnow.mathematics.private_noise import FINE
from fedwinnow.models.make_model import make_model
from fedwinnow.models.model import Shape

ROWS, IMAGES, TOKENS = Shape("rows", (5,), 3), Shape("images", (16, 16, 3), 3), Shape("tokens", (6,), 3, 20)
MODELS = [
    ("linear", ROWS),
    ("mlp:hidden=4", ROWS),
    ("lenet", IMAGES),
    ("cnn4:norm=group,width=8", IMAGES),
    ("lenet:norm=group", IMAGES),
    ("text:width=4", TOKENS),
]


def material(shape: Shape, count: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    example = shape.example(count)
    x = torch.randn(example.shape, generator=generator)
    if shape.kind == "tokens":
        x = torch.randint(1, 20, example.shape, generator=generator)
    return x, torch.randint(3, (count,), generator=generator)


def clipped(
    model: FlatModel, x: torch.Tensor, y: torch.Tensor, clip: float, loss: str = "cross_entropy"
) -> torch.Tensor:
    return whole_sum(model, x, y, clip, loss).double() * clip / 2**FINE


def whole_sum(
    model: FlatModel, x: torch.Tensor, y: torch.Tensor, clip: float, loss: str = "cross_entropy"
) -> torch.Tensor:
    model.train()
    return clipped_sum(model, catalogue.make("losses", loss), x, y, 3, clip)


def one_by_one(model: FlatModel, x: torch.Tensor, y: torch.Tensor, clip: float) -> torch.Tensor:
    """The same by backpropagation, a sample at a time."""
    total = torch.zeros_like(model.gradient)
    for row in range(len(x)):
        model.gradient.zero_()
        CrossEntropy().mean(model.module(x[row : row + 1]), y[row : row + 1], torch.ones(3)).backward()
        total += model.gradient * min(1.0, clip / float(model.gradient.norm()))
    return total


@pytest.mark.parametrize(("spec", "shape"), MODELS)
@pytest.mark.parametrize("clip", [0.3, 30.0])
def test_the_sum_is_that_of_backpropagation_sample_by_sample(spec, shape, clip):
    model, (x, y) = FlatModel(make_model(spec, shape), fast_heads=True), material(shape)
    expected = one_by_one(model, x, y, clip).double()
    assert torch.allclose(clipped(model, x, y, clip), expected, rtol=1e-3, atol=1e-5 * max(1, clip))


@pytest.mark.parametrize("loss", ["cross_entropy", "gce", "sce"])
@pytest.mark.parametrize("spec", ["linear", "mlp:hidden=4"])
def test_by_hand_and_by_torch_func_agree(spec, loss):
    x, y = material(ROWS)
    found = [clipped(FlatModel(make_model(spec, ROWS), fast_heads=fast), x, y, 0.3, loss) for fast in (True, False)]
    assert torch.allclose(*found, atol=5e-6)


@pytest.mark.parametrize("fast", [True, False])
def test_a_sample_changes_the_sum_by_no_more_than_the_clip_however_large_it_is(fast):
    # 20 samples, the last one a thousand times larger, and larger again: without it the sum lacks at most the clip.
    model, (x, y) = FlatModel(make_model("mlp:hidden=4", ROWS), fast_heads=fast), material(ROWS, 20)
    without = clipped(model, x[:-1], y[:-1], 0.5)
    for size in (1.0, 2.0, 1e3, 1e6):
        x[-1] = size
        y[-1] = model.module(x[-1:]).argmin()  # a label that the model does not believe, so that its gradient is large
        moved = float((clipped(model, x, y, 0.5) - without).norm())
        assert moved <= 0.5
    assert moved > 0.49  # the largest gradient is clipped and not left out


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_sample_that_is_no_number_counts_as_missing(fast, bad):
    model, (x, y) = FlatModel(make_model("mlp:hidden=4", ROWS), fast_heads=fast), material(ROWS)
    without = clipped(model, x[1:], y[1:], 0.5)
    x[0] = bad
    assert torch.allclose(clipped(model, x, y, 0.5), without, atol=1e-6)


def test_no_sample_gives_no_gradient():
    model, (x, y) = FlatModel(make_model("mlp:hidden=4", ROWS), fast_heads=True), material(ROWS)
    assert not clipped(model, x[:0], y[:0], 0.5).any()


@pytest.mark.parametrize("loss", ["cross_entropy", "gce", "sce"])
@pytest.mark.parametrize("spec", ["linear", "mlp:hidden=50"])
def test_the_sum_of_a_head_is_that_of_its_samples_to_the_last_bit(spec, loss):
    # Sums of floats depend on their order, and the last bits of a product of matrices on the number of its rows:
    # by either, one sample could move the others, and so the sum farther than the clip.
    shape, generator = Shape("rows", (200,), 3), torch.Generator().manual_seed(3)
    model = FlatModel(make_model(spec, shape), fast_heads=True)
    x, y = torch.randn(131, 200, generator=generator), torch.randint(3, (131,), generator=generator)
    together = whole_sum(model, x, y, 0.3, loss)
    alone = sum(whole_sum(model, x[row : row + 1], y[row : row + 1], 0.3, loss) for row in range(131))
    assert torch.equal(together, alone)
    order = torch.randperm(131, generator=generator)
    assert torch.equal(whole_sum(model, x[order], y[order], 0.3, loss), together)


@pytest.mark.parametrize(("spec", "shape"), MODELS)
def test_the_sum_of_other_models_is_exact_besides_the_last_bits_of_single_gradients(spec, shape):
    model, (x, y) = FlatModel(make_model(spec, shape)), material(shape, 40)
    together = whole_sum(model, x, y, 0.3)
    alone = sum(whole_sum(model, x[row : row + 1], y[row : row + 1], 0.3) for row in range(40))
    assert float((together - alone).double().norm()) < 40 * 2**FINE * 1e-6


def test_whole_sums_of_many_long_gradients_do_not_overflow():
    model = FlatModel(make_model("linear", ROWS), fast_heads=True)
    x, y = torch.full((20_000, 5), 1e3), torch.zeros(20_000, dtype=torch.int64)
    one = whole_sum(model, x[:1], y[:1], 1.0)
    assert torch.equal(whole_sum(model, x, y, 1.0), 20_000 * one)
    assert 0.999 < float(one.double().norm()) / 2**FINE <= 1


def test_whole_updates_are_no_longer_than_the_clip():
    update = torch.randn(5000, generator=torch.Generator().manual_seed(2))
    for size in (1e-3, 0.1, 1.0, 1e6):
        found = whole_update(update * size, 0.7).double() * 0.7 / 2**FINE
        assert float(found.norm()) <= 0.7
        assert torch.allclose(found, clipped_update(update * size, 0.7).double(), rtol=1e-4, atol=1e-9)
    assert not whole_update(torch.tensor([1.0, float("inf")]), 1.0).any()


def test_an_update_is_shortened_only_if_it_is_longer():
    assert torch.equal(clipped_update(torch.tensor([0.3, 0.4]), 1.0), torch.tensor([0.3, 0.4]))
    assert torch.allclose(clipped_update(torch.tensor([3.0, 4.0]), 1.0), torch.tensor([0.6, 0.8]), rtol=1e-3)
    assert float(clipped_update(torch.tensor([3.0, 4.0]), 1.0).norm()) <= 1.0
    assert not clipped_update(torch.tensor([3.0, float("nan")]), 1.0).any()


@pytest.mark.parametrize(
    ("spec", "mixes"),
    [("resnet18", True), ("cnn4", True), ("lenet:norm=batch", True), ("resnet18:norm=group", False), ("lenet", False)],
)
def test_layers_in_which_samples_meet_are_found(spec, mixes):
    assert bool(mixing_layers(make_model(spec, IMAGES))) == mixes


def test_a_frozen_layer_with_statistics_does_not_mix():
    module = make_model("cnn4:norm=batch", IMAGES)
    for name, value in module.named_parameters():
        value.requires_grad_(name.startswith("fc"))
    assert not mixing_layers(module)
