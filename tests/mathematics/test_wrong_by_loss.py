"""The probability that a label is wrong rises with its loss, whatever the losses of a site look like."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedwinnow.mathematics.two_gaussians import TwoGaussians, fit_two_gaussians
from fedwinnow.mathematics.wrong_by_loss import (
    AT_ONCE,
    p_high,
    strictly_rising,
    together,
    wrong_by_loss,
    wrong_by_losses,
)
from fedwinnow.metrics.detection import auroc


def mixture(means, variances, weights=(0.5, 0.5)):
    columns = [torch.tensor(column, dtype=torch.float64) for column in (means, variances, weights)]
    return TwoGaussians(*columns, torch.tensor(False))


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


# --- the posterior of the high component ----------------------------------------------------------------------------


def test_components_of_one_width_need_no_help():
    # log-odds (x^2 - (x - 2)^2) / 2 = 2 x - 2
    values = torch.tensor([-1.0, 0.0, 1.0, 2.0], dtype=torch.float64)
    assert p_high(mixture((0, 2), (1, 1)), values).tolist() == pytest.approx([sigmoid(2 * x - 2) for x in values])


def test_below_a_narrow_low_component_it_stays_what_it_is_at_the_turn():
    # log-odds -log(10) - (x - 1)^2 / 2 + 50 x^2: slope 99 x + 1, so it turns at -1 / 99
    found = p_high(mixture((0, 1), (0.01, 1)), torch.tensor([-3.0, -1.0, -1 / 99, 0.0, 0.3, 1.0], dtype=torch.float64))
    at_turn = sigmoid(-math.log(10) - (1 + 1 / 99) ** 2 / 2 + 50 / 99**2)
    assert found[:3].tolist() == pytest.approx([at_turn] * 3)
    assert found[3:].tolist() == pytest.approx(
        [sigmoid(-math.log(10) - (x - 1) ** 2 / 2 + 50 * x * x) for x in (0, 0.3, 1)]
    )


def test_above_a_narrow_high_component_it_stays_what_it_is_at_the_turn():
    # the mirror image, around 1 / 2
    found = p_high(mixture((0, 1), (1, 0.01)), torch.tensor([1.0, 1 + 1 / 99, 2.0, 50.0], dtype=torch.float64))
    at_turn = sigmoid(math.log(10) + (1 + 1 / 99) ** 2 / 2 - 50 / 99**2)
    assert found.tolist() == pytest.approx([sigmoid(math.log(10) + 1 / 2), *[at_turn] * 3])


def test_losses_that_are_smaller_than_usual_are_not_wrong():
    """Right labels close together at 0.5, wrong ones anywhere: the plain posterior calls the smallest losses wrong."""
    losses = torch.cat([torch.linspace(0.48, 0.52, 100), torch.linspace(0.0, 8.0, 50)])
    plain = 1 - fit_two_gaussians(losses).p_low(losses)
    assert plain[100] > 0.5
    found = wrong_by_loss(losses)
    assert found[100] < 0.5
    assert found[100] == found.min()
    assert found[-1] > 0.99


# --- the mean of both opinions ---------------------------------------------------------------------------------------


def test_by_hand():
    losses = torch.tensor([0.1] * 5 + [0.2] * 5 + [3.0] * 5 + [3.2] * 5)
    found = wrong_by_loss(losses)
    # two clear groups: the site's posterior is 0 or 1, the model's own probability is 1 - exp(-loss)
    expected = [(1 - math.exp(-0.1)) / 2, (1 - math.exp(-0.2)) / 2, 1 - math.exp(-3) / 2, 1 - math.exp(-3.2) / 2]
    assert found[::5].tolist() == pytest.approx(expected)


def test_one_value_calls_nothing():
    # one component only: the model's opinion alone cannot call
    assert wrong_by_loss(torch.full((9,), 50.0)).tolist() == [0.5] * 9
    assert wrong_by_loss(torch.tensor([0.7])).tolist() == pytest.approx([(1 - math.exp(-0.7)) / 2])
    assert wrong_by_loss(torch.zeros(3)).tolist() == [0.0] * 3
    assert wrong_by_loss(torch.zeros(0)).tolist() == []


def test_the_largest_losses_of_a_clean_site_are_below_those_of_a_noisy_one():
    clean = wrong_by_loss(torch.tensor([0.001, 0.002, 0.003, 0.1, 0.11, 0.12]))
    noisy = wrong_by_loss(torch.tensor([0.01, 0.02, 0.03, 3.0, 3.1, 3.2]))
    assert clean.max() < noisy[3:].min()


SHAPES = {
    "exponential": lambda luck: luck.exponential(size=400),
    "heavy tail": lambda luck: np.exp(3 * luck.normal(size=400)),
    "almost one value": lambda luck: 0.7 + 1e-7 * luck.normal(size=400),
    "collapsed": lambda luck: np.full(400, 2.0) + (np.arange(400) == 0) * 1e-6,
    "memorised": lambda luck: np.concatenate([1e-6 * luck.rand(390), luck.rand(10)]),
    "two very narrow groups": lambda luck: np.concatenate([0.1 + 1e-9 * luck.rand(200), 5 + 1e-9 * luck.rand(200)]),
    "wide and narrow": lambda luck: np.concatenate([8 * luck.rand(200), 7 + 1e-3 * luck.rand(200)]),
    "so large that nothing is left of 1 - p": lambda luck: 30 + 1e4 * luck.rand(400),
    "few values, many ties": lambda luck: luck.randint(0, 9, 400) / 3,
    "two samples": lambda luck: np.array([0.3, 0.2]),
}


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shape", SHAPES)
def test_it_has_exactly_the_order_of_the_losses(shape, seed, kind):
    losses = torch.from_numpy(SHAPES[shape](np.random.RandomState(seed))).to(kind)
    found = wrong_by_loss(losses)
    assert found.dtype == torch.float64
    assert ((found >= 0) & (found <= 1)).all()
    values, place = losses.unique(return_inverse=True)
    of_value = torch.stack([found[place == number].unique() for number in range(len(values))])  # equal: one each
    assert (of_value[1:, 0] > of_value[:-1, 0]).all()


def test_what_is_no_number_is_as_bad_as_can_be():
    found = wrong_by_loss(torch.tensor([0.1, 0.2, torch.nan, 3.0, torch.inf, 0.1]))
    assert found[2] == found[4] == found.max()
    assert 0.5 < found[2] <= 1


@pytest.mark.parametrize("value", [0.0, 0.3, 0.5, float(np.nextafter(0.5, 1)), 0.7, 1.0])
def test_equal_probabilities_are_told_apart_on_their_side_of_the_middle(value):
    found = strictly_rising(torch.full((1000,), value, dtype=torch.float64))
    assert (found[1:] > found[:-1]).all()
    assert ((found > 0.5) == (value > 0.5)).all()
    assert ((found >= 0) & (found <= 1)).all()
    assert found.tolist() == pytest.approx([value] * 1000, abs=1e-12)


def test_what_rises_already_is_left_alone():
    rising = torch.tensor([0.0, 0.1, 0.5, 0.6, 1.0], dtype=torch.float64)
    assert torch.equal(strictly_rising(rising), rising)


# --- many sites at once -----------------------------------------------------------------------------------------------


def sites_of_all_kinds():
    """Losses of sites of 0 to 60 samples, some with equal losses, with zeros, with what is no number, two heaps."""
    luck = torch.Generator().manual_seed(7)
    for number in range(300):
        losses = (3 * torch.randn(int(torch.randint(0, 61, (1,), generator=luck)), generator=luck)).exp()
        if number % 5 == 1:
            losses = losses.round()
        if number % 5 == 2:
            losses[::2] = 0
        if number % 5 == 3 and len(losses):
            losses[0], losses[-1] = torch.nan, torch.inf
        yield losses + 4 * (torch.arange(len(losses)) % 3 == 0) if number % 5 == 4 else losses


def test_many_sites_together_have_the_bits_that_each_has_by_itself():
    losses = list(sites_of_all_kinds())
    found = wrong_by_losses(losses)
    assert all(torch.equal(one, wrong_by_loss(site)) for one, site in zip(found, losses, strict=True))
    assert [len(one) for one in found] == [len(site) for site in losses]


def test_sites_are_taken_together_by_length_and_not_without_limit():
    assert together([3, 0, 2, 3, 2, 3]) == [[2, 4], [0, 3, 5]]
    assert [len(places) for places in together([AT_ONCE // 2] * 5)] == [2, 2, 1]
    assert together([2 * AT_ONCE] * 2) == [[0], [1]]


# --- the default verdict ---------------------------------------------------------------------------------------------


def test_at_one_site_it_ranks_as_the_loss_does():
    luck = np.random.RandomState(0)
    losses = np.concatenate([0.5 + 0.05 * luck.normal(size=300), 0.3 + luck.exponential(2.0, 200)])
    wrong = np.arange(500) >= 300
    assert auroc(wrong_by_loss(torch.from_numpy(losses)).numpy(), wrong) == auroc(losses, wrong)
