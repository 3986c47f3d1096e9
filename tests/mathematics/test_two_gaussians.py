"""The mixture of two Gaussians: hand-worked steps, agreement with scikit-learn, and everything that can go wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from sklearn.mixture import GaussianMixture

from fedwinnow.mathematics.two_gaussians import TwoGaussians, fit_many, fit_two_gaussians


def mixture(*flat: float, **more) -> TwoGaussians:
    return TwoGaussians.from_flat(torch.tensor(flat, dtype=torch.float64), **more)


def two_heaps(
    seed: int, low: int = 300, high: int = 100, gap: float = 5.0, spreads: tuple[float, float] = (0.4, 0.6)
) -> torch.Tensor:
    generator = np.random.default_rng(seed)
    return torch.from_numpy(
        np.concatenate([generator.normal(1, spreads[0], low), generator.normal(gap, spreads[1], high)])
    )


# --- by hand ----------------------------------------------------------------------------------------------------------


def test_one_step_by_hand():
    # Equal weights and variances 1, means 1 and 3: the odds of low against high are exp(-((x-1)^2 - (x-3)^2) / 2),
    # that is exp(4 - 2 x). With x = log 3 / 2 below and above the middle 2 the posteriors are 3/4 and 1/4; at 2, 1/2.
    half = math.log(3) / 2
    points = torch.tensor([2 - half, 2.0, 2.0, 2 + half], dtype=torch.float64)
    fitted = fit_two_gaussians(points, start=mixture(1, 3, 1, 1, 0.5, 0.5), steps=1)
    # Low holds 3/4 + 1/2 + 1/2 + 1/4 = 2 samples; its mean is 2 + (3/4 - 1/4)(-half) / 2 = 2 - half / 4.
    low_mean, high_mean = 2 - half / 4, 2 + half / 4
    # Its mean square around 2 is (3/4 + 1/4) half^2 / 2; the variance is that less the square of the mean's distance.
    variance = half**2 / 2 - (half / 4) ** 2
    expected = torch.tensor([low_mean, high_mean, variance, variance, 0.5, 0.5], dtype=torch.float64)
    assert torch.allclose(fitted.flat, expected, rtol=0, atol=1e-14)
    assert not fitted.collapsed


def test_posterior_by_hand():
    # Equal variances: at the point halfway only the weights decide.
    assert mixture(0, 2, 1, 1, 0.8, 0.2).p_low(torch.tensor([1.0]))[0] == pytest.approx(0.8, abs=1e-12)
    # Densities at 0: exp(0) / 1 and exp(-1/2 * 4 / 4) / 2, so the odds are 2 sqrt(e).
    odds = 2 * math.sqrt(math.e)
    assert mixture(0, 2, 1, 4, 0.5, 0.5).p_low(torch.tensor([0.0]))[0] == pytest.approx(odds / (odds + 1), abs=1e-12)


def test_far_values_do_not_underflow():
    p_low = mixture(0, 1, 1e-6, 1e-6, 0.5, 0.5).p_low(torch.tensor([-50.0, 0.49, 0.51, 50.0]))
    assert p_low.tolist() == [1.0, 1.0, 0.0, 0.0]


def test_the_start_by_hand():
    # 0, 1, 2 against 10, 12: 3 of 5 are low; no step is taken, so these are the moments of the two groups.
    fitted = fit_two_gaussians(torch.tensor([12.0, 0.0, 2.0, 10.0, 1.0]), steps=0)
    assert fitted.flat.tolist() == pytest.approx([1, 11, 2 / 3, 1, 0.6, 0.4], abs=1e-12)


def test_few_large_values_are_found_although_both_percentiles_are_low():
    values = torch.cat([torch.linspace(0, 0.1, 95), torch.linspace(5, 6, 5)])
    assert fit_two_gaussians(values, steps=0).means.tolist() == pytest.approx([0.05, 5.5], abs=1e-6)
    fitted = fit_two_gaussians(values)
    assert fitted.means.tolist() == pytest.approx([0.05, 5.5], abs=1e-6)
    assert ((fitted.p_low(values) <= 0.5) == (values > 1)).all()


@pytest.mark.parametrize("low", [1, 10, 50, 90, 99])
def test_many_equal_values_are_no_obstacle(low):
    values = torch.cat([torch.zeros(low), torch.full((100 - low,), 5.0)])
    fitted = fit_two_gaussians(values)
    assert fitted.flat.tolist() == pytest.approx([0, 5, 1e-6, 1e-6, low / 100, 1 - low / 100], abs=1e-12)


# --- against scikit-learn ---------------------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(seed=some.integers(0, 999), low=some.integers(30, 300), high=some.integers(30, 300), gap=some.floats(5, 9))
def test_agrees_with_sklearn_on_separate_heaps(seed, low, high, gap):
    values = two_heaps(seed, low, high, gap)
    ours = fit_two_gaussians(values)
    theirs = GaussianMixture(2, random_state=0).fit(values[:, None].numpy())
    order = np.argsort(theirs.means_[:, 0])
    assert np.allclose(ours.means, theirs.means_[order, 0], atol=1e-3)
    assert np.allclose(ours.weights, theirs.weights_[order], atol=1e-3)
    assert np.allclose(ours.variances, theirs.covariances_[order, 0, 0], atol=1e-3)
    decided = theirs.predict_proba(values[:, None].numpy())[:, order[0]] > 0.5
    assert np.array_equal(ours.p_low(values).numpy() > 0.5, decided)


def test_the_same_start_climbs_the_same_way_as_sklearn():
    values = two_heaps(3, gap=2.0)  # overlapping, so that many steps are needed
    begin = mixture(0.5, 3, 1, 0.5, 0.3, 0.7)
    ours = fit_two_gaussians(values, start=begin, steps=7, tolerance=0, variance_floor=1e-12, weight_floor=1e-12)
    theirs = GaussianMixture(
        2,
        max_iter=7,
        tol=0,
        reg_covar=0,
        weights_init=begin.weights.numpy(),
        means_init=begin.means.numpy()[:, None],
        precisions_init=1 / begin.variances.numpy()[:, None, None],
    )
    with pytest.warns(UserWarning, match="converge"):
        theirs.fit(values[:, None].numpy())
    expected = [*theirs.means_.ravel(), *theirs.covariances_.ravel(), *theirs.weights_]
    assert ours.flat.tolist() == pytest.approx(expected, abs=1e-10)


# --- many sites at once -----------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(
    lengths=some.lists(some.integers(0, 60), min_size=1, max_size=6),
    seed=some.integers(0, 999),
    more=some.sampled_from([{}, {"normalise": True}, {"guard_bic": True}, {"steps": 3}]),
)
def test_many_at_once_equal_one_by_one(lengths, seed, more):
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(len(lengths), 60, generator=generator) ** 3
    values[values > 0.7] += 2
    padded = torch.where(torch.arange(60) < torch.tensor(lengths)[:, None], values, -1e9)  # padding must not matter
    together = fit_many(padded, torch.tensor(lengths), monotone=True, **more)
    p_low = together.p_low(padded, torch.tensor(lengths))
    for site, length in enumerate(lengths):
        alone = fit_two_gaussians(values[site, :length], monotone=True, **more)
        assert torch.allclose(together[site].flat, alone.flat, rtol=0, atol=1e-12)
        assert together[site].collapsed == alone.collapsed
        assert torch.allclose(p_low[site, :length], alone.p_low(values[site, :length]), rtol=0, atol=1e-12)


def test_every_site_stops_by_itself():
    values = torch.rand(80, 40, generator=torch.Generator().manual_seed(0))
    together = fit_many(values)
    alone = torch.stack([fit_two_gaussians(row).flat for row in values])
    assert torch.allclose(together.flat, alone, rtol=0, atol=1e-12)


def test_the_order_of_values_hardly_matters_and_a_repeat_is_identical():
    values = two_heaps(1)
    first = fit_two_gaussians(values)
    assert torch.equal(first.flat, fit_two_gaussians(values).flat)
    assert torch.allclose(first.flat, fit_two_gaussians(values.flip(0)).flat, rtol=0, atol=1e-12)


# --- what travels, warm starts ----------------------------------------------------------------------------------------


def test_six_numbers_travel_and_come_back():
    fitted = fit_two_gaussians(two_heaps(2))
    back = TwoGaussians.from_flat(fitted.flat)
    assert fitted.flat.shape == (6,)
    assert torch.equal(back.flat, fitted.flat)
    assert not back.collapsed
    assert torch.equal(back.p_low(two_heaps(4)), fitted.p_low(two_heaps(4)))


def test_a_collapsed_mixture_is_still_collapsed_after_travelling():
    fitted = fit_two_gaussians(torch.full((5,), 3.0))
    assert fitted.flat.isfinite().all()
    assert TwoGaussians.from_flat(fitted.flat).collapsed


def test_components_are_sorted_by_mean():
    assert mixture(3, 1, 0.3, 0.1, 0.7, 0.3).flat.tolist() == pytest.approx([1, 3, 0.1, 0.3, 0.3, 0.7])
    values = two_heaps(5)
    fitted = fit_two_gaussians(values, start=mixture(5, 1, 1, 1, 0.5, 0.5))
    assert fitted.means[0] < fitted.means[1]


def test_a_warm_start_continues_where_the_last_fit_stopped():
    values = two_heaps(6, gap=2.0)
    whole = fit_two_gaussians(values, steps=9, tolerance=0)
    halves = fit_two_gaussians(values, start=fit_two_gaussians(values, steps=5, tolerance=0), steps=4, tolerance=0)
    assert torch.equal(whole.flat, halves.flat)


def test_one_start_serves_many_sites_and_each_site_may_have_its_own():
    values = torch.stack([two_heaps(1), two_heaps(2)])
    begin = [mixture(0, 5, 1, 1, 0.5, 0.5), mixture(0.5, 4, 1, 2, 0.4, 0.6)]
    shared = fit_many(values, start=begin[0], steps=2)
    own = fit_many(values, start=TwoGaussians.from_flat(torch.stack([each.flat for each in begin])), steps=2)
    assert torch.allclose(shared[1].flat, fit_two_gaussians(values[1], start=begin[0], steps=2).flat, atol=1e-12)
    assert torch.allclose(own[1].flat, fit_two_gaussians(values[1], start=begin[1], steps=2).flat, atol=1e-12)


def test_a_collapsed_start_is_replaced_by_a_fresh_one():
    values = two_heaps(1)
    assert torch.equal(fit_two_gaussians(values, start=mixture(1, 1, 1, 1, 1, 0)).flat, fit_two_gaussians(values).flat)


def test_a_poor_start_finds_back_and_one_that_no_value_is_near_collapses():
    values = two_heaps(7)
    poor = fit_two_gaussians(values, start=mixture(0.01, 30, 1e-4, 1, 0.5, 0.5))
    assert torch.allclose(poor.means, fit_two_gaussians(values).means, atol=0.01)
    assert fit_two_gaussians(values, start=mixture(1e3, 2e3, 1e-6, 1e-6, 0.5, 0.5)).collapsed


# --- degenerate values ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [[], [1.0], [2.0] * 7, [2.0, 2.0 + 1e-9], [math.nan] * 4, [math.inf, 1.0], [math.nan, 3.0, 3.0]],
    ids=["none", "one", "equal", "almost equal", "not numbers", "infinite", "equal apart from NaN"],
)
@pytest.mark.parametrize("more", [{}, {"normalise": True}, {"guard_bic": True}], ids=str)
def test_nothing_to_tell_apart_means_all_clean(values, more):
    values = torch.tensor(values, dtype=torch.float64)
    fitted = fit_two_gaussians(values, **more)
    assert fitted.collapsed
    assert fitted.flat.isfinite().all()
    assert fitted.p_low(values).tolist() == [1.0] * len(values)


def test_an_empty_component_collapses():
    # All values are near the low mean and one step cannot bring the high component back.
    fitted = fit_two_gaussians(torch.linspace(0, 1, 20), start=mixture(0.5, 1e6, 0.1, 1.0, 0.5, 0.5), steps=1)
    assert fitted.collapsed
    assert fitted.flat.isfinite().all()


def test_no_number_counts_as_the_largest_value():
    values = two_heaps(8)
    broken = torch.cat([values, torch.tensor([math.nan, math.inf, -math.inf, 1e200])])
    plain = torch.cat([values, values.max().repeat(4)])
    fitted = fit_two_gaussians(broken)
    assert torch.equal(fitted.flat, fit_two_gaussians(plain).flat)
    assert torch.equal(fitted.p_low(broken), fitted.p_low(plain))
    assert (fitted.p_low(broken)[-4:] < 0.5).all()


def test_floors_hold():
    values = torch.cat([torch.zeros(9999), torch.ones(1)])
    fitted = fit_two_gaussians(values, variance_floor=1e-4, weight_floor=1e-2)
    assert fitted.flat.tolist() == pytest.approx([0, 1, 1e-4, 1e-4, 0.99, 0.01], abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(
    some.lists(some.floats(width=32), max_size=30),
    some.booleans(),
    some.booleans(),
)
def test_whatever_comes_in_numbers_come_out(values, normalise, monotone):
    values = torch.tensor(values, dtype=torch.float32)
    fitted = fit_two_gaussians(values, normalise=normalise, monotone=monotone)
    p_low = fitted.p_low(values)
    assert fitted.flat.isfinite().all()
    assert p_low.shape == values.shape
    assert ((p_low >= 0) & (p_low <= 1)).all()
    assert fitted.means[0] <= fitted.means[1]


@pytest.mark.parametrize("length", [1, 2, 5, 16, 31, 50, 257])
@pytest.mark.parametrize("options", [{}, {"normalise": True}, {"guard_bic": True, "monotone": True}], ids=str)
def test_rows_of_one_length_have_the_bits_that_each_has_by_itself(length, options):
    rows = (2 * torch.randn(64, length, generator=torch.Generator().manual_seed(length))).exp()
    rows[::2, : length // 3] += 20
    many, single = fit_many(rows, **options), [fit_two_gaussians(row, **options) for row in rows]
    assert torch.equal(many.flat, torch.stack([one.flat for one in single]))
    assert torch.equal(many.collapsed, torch.stack([one.collapsed for one in single]))
    both = zip(single, rows, strict=True)
    assert torch.equal(many.p_low(rows), torch.stack([one.p_low(row) for one, row in both]))


# --- options ----------------------------------------------------------------------------------------------------------


def test_normalised_parameters_are_in_units_of_the_range():
    values = two_heaps(9)
    plain, scaled = (fit_two_gaussians(values, normalise=choice, tolerance=0) for choice in (False, True))
    low, spread = values.min(), values.max() - values.min()
    assert torch.allclose(scaled.means * spread + low, plain.means, atol=1e-3)
    assert torch.allclose(scaled.p_low(values), plain.p_low(values), atol=1e-3)
    assert torch.allclose(scaled.p_low(values), scaled.p_low(100 * values + 7), atol=1e-9)


def test_monotone_takes_the_smallest_losses_for_clean():
    wide = (1, 2, 0.01, 4, 0.5, 0.5)  # the high component is so wide that it also claims very small values
    values = torch.tensor([-3.0, 0.99, 1.0, 6.0])
    assert mixture(*wide).p_low(values)[0] < 0.01
    fixed = mixture(*wide, monotone=True).p_low(values)
    assert fixed[:2].tolist() == [1.0, 1.0]
    assert torch.equal(fixed[2:], mixture(*wide).p_low(values)[2:])


def test_the_guard_keeps_a_single_heap_whole():
    one = torch.from_numpy(np.random.default_rng(0).normal(0, 1, 400))
    assert not fit_two_gaussians(one).collapsed
    assert fit_two_gaussians(one, guard_bic=True).collapsed
    assert not fit_two_gaussians(two_heaps(11), guard_bic=True).collapsed


@pytest.mark.parametrize("gap", [1.0, 2.6, 3.0, 3.4, 4.0, 5.0])
def test_the_guard_is_the_bayesian_information_criterion(gap):
    values = two_heaps(13, low=60, high=40, gap=gap, spreads=(0.6, 0.6))
    guarded = fit_two_gaussians(values, guard_bic=True, tolerance=1e-9, steps=1000)
    table = values[:, None].numpy()
    one, two = (GaussianMixture(k, random_state=0, tol=1e-9, max_iter=1000).fit(table).bic(table) for k in (1, 2))
    assert bool(guarded.collapsed) == (one <= two)


def test_results_are_float64_and_carry_no_gradient():
    values = two_heaps(12).float().requires_grad_()
    fitted = fit_two_gaussians(values)
    assert fitted.flat.dtype == fitted.p_low(values).dtype == torch.float64
    assert not fitted.p_low(values).requires_grad
