"""Losses against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from fedwinnow import catalogue
from fedwinnow.errors import RunError
from fedwinnow.mathematics.losses import Loss, WeightedLoss, loss_of, mean_over, soft

# Two samples, three classes. Row 1: softmax (1/2, 1/4, 1/4). Row 2: softmax (1/4, 1/4, 1/2).
LOGITS = torch.tensor([[math.log(2.0), 0.0, 0.0], [0.0, 0.0, math.log(2.0)]])
LABELS = torch.tensor([0, 1])
COUNTS = torch.tensor([6, 2, 0])


def value(spec: str, target: torch.Tensor = LABELS) -> list[float]:
    loss = catalogue.make("losses", spec)
    assert isinstance(loss, Loss)
    return loss(LOGITS, target, COUNTS).tolist()


def test_cross_entropy():
    assert value("cross_entropy") == pytest.approx([math.log(2), math.log(4)])


def test_symmetric_cross_entropy():
    # 0.1 CE + 1 * (-log 1e-4) (1 - p_y), with -log 1e-4 = 9.2103.
    reverse = -math.log(1e-4)
    assert value("sce") == pytest.approx([0.1 * math.log(2) + reverse * 0.5, 0.1 * math.log(4) + reverse * 0.75])


def test_generalised_cross_entropy():
    assert value("gce:q=1") == pytest.approx([0.5, 0.75])
    assert value("gce:q=0.7") == pytest.approx([(1 - 0.5**0.7) / 0.7, (1 - 0.25**0.7) / 0.7])
    assert value("gce:q=1e-4") == pytest.approx(value("cross_entropy"), rel=1e-3)


def test_logit_adjustment():
    # Frequencies (3/4, 1/4, 0 -> 1e-8): row 1 has weights (2 * 3/4, 1/4, 1e-8), row 2 (3/4, 1/4, 2e-8).
    assert value("logit_adjustment") == pytest.approx([-math.log(1.5 / 1.75), -math.log(0.25)], rel=1e-5)
    assert value("logit_adjustment:tau=0") == pytest.approx(value("cross_entropy"))


@pytest.mark.parametrize("spec", ["cross_entropy", "sce", "gce", "logit_adjustment"])
def test_a_soft_label_that_is_one_hot_is_the_hard_label(spec):
    one_hot = torch.nn.functional.one_hot(LABELS, 3).float()
    assert value(spec, one_hot) == pytest.approx(value(spec), rel=1e-5)


def test_every_loss_has_a_gradient_that_is_a_number():
    for name in catalogue.entries("losses"):
        loss = catalogue.make("losses", name)
        logits = torch.tensor([[200.0, -200.0, 0.0]], requires_grad=True)
        loss(logits, torch.tensor([1]), COUNTS).sum().backward()
        assert torch.isfinite(logits.grad).all()


@pytest.mark.parametrize("spec", ["cross_entropy", "sce", "gce", "logit_adjustment"])
@pytest.mark.parametrize("soft", [False, True], ids=["hard", "soft"])
def test_the_mean_of_a_batch_has_the_slope_of_the_mean_to_the_last_bit(spec, soft):
    loss = catalogue.make("losses", spec)
    assert isinstance(loss, Loss)
    generator = torch.Generator().manual_seed(0)
    for count in (1, 3, 10, 33, 128):
        logits = torch.randn(count, 3, generator=generator)
        target = torch.rand(count, 3, generator=generator).softmax(1) if soft else torch.arange(count) % 3
        slopes = []
        for mean in (loss.mean, lambda *given: loss(*given).mean()):
            leaf = logits.clone().requires_grad_()
            mean(leaf, target, COUNTS).backward()
            slopes.append(leaf.grad)
        assert torch.equal(*slopes)


def test_the_mean_over_a_mask_has_the_slope_of_the_mean_of_a_part():
    torch.manual_seed(0)
    losses = torch.randn(9, requires_grad=True)
    kept = torch.tensor([True, False, True, True, False, True, False, True, True])
    (slope,) = torch.autograd.grad(mean_over(losses, kept), losses)
    (expected,) = torch.autograd.grad(losses[kept].mean(), losses)
    assert torch.equal(slope, expected)
    assert float(mean_over(losses, kept)) == pytest.approx(float(losses[kept].mean()))
    assert float(mean_over(losses, torch.zeros(9, dtype=torch.bool))) == 0.0
    broken = torch.tensor([1.0, torch.nan])
    assert float(mean_over(broken, torch.tensor([True, False]))) == 1.0


@pytest.mark.parametrize("spec", ["cross_entropy", "gce", "sce", "logit_adjustment"])
def test_a_weight_per_sample(spec):
    plain, weights = catalogue.make("losses", spec), torch.tensor([0.25, 1.0])
    assert isinstance(plain, Loss)
    weighted, target = WeightedLoss(plain), torch.cat([soft(LABELS, LOGITS), weights[:, None]], 1)
    first, second = plain(LOGITS, LABELS, COUNTS).tolist()
    assert weighted(LOGITS, target, COUNTS).tolist() == pytest.approx([0.25 * first, second])
    assert float(weighted.mean(LOGITS, target, COUNTS)) == pytest.approx((0.25 * first + second) / 2)
    leaf = LOGITS.clone().requires_grad_()
    weighted.mean(leaf, target, COUNTS).backward()
    assert leaf.grad is not None
    assert torch.allclose(weighted.slope(LOGITS, target, COUNTS), leaf.grad, atol=1e-7)


def test_a_mean_cannot_be_weighted():
    target = torch.cat([soft(LABELS, LOGITS), torch.ones(2, 1)], 1)
    mean = WeightedLoss(loss_of(lambda logits, target: logits.mean()))
    with pytest.raises(RunError, match="returns a mean"):
        mean.slope(LOGITS, target, COUNTS)
    each = WeightedLoss(loss_of(lambda logits, target: (logits * target).sum(1)))
    assert torch.allclose(each.slope(LOGITS, target, COUNTS), soft(LABELS, LOGITS) / 2)
