"""The explanation of disagreement by hand: hardness, rates of wrong labels, and what the counts do not reject."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedwinnow.mathematics.disagreement import (
    STRAY,
    Counts,
    Explanation,
    Range,
    excess_range,
    explain,
    hardness,
    negative,
    rising,
    surest_differ,
)

SURENESS = np.array([0.0, 1.0, 2.0, 3.0])


def expected(alpha, beta, rates, samples=1000, classes=4):
    """Counts exactly as the explanation says."""
    share = classes / (classes - 1)
    hard = hardness(alpha, beta, SURENESS, share)
    differ = hard + np.asarray(rates)[:, None] * (1 - share * hard)
    whole = np.full(differ.shape, float(samples))
    return Counts(whole, whole * differ, classes)


def test_hardness_falls_with_sureness_and_is_never_worse_than_a_blind_guess():
    found = hardness(-3.0, 2.0, SURENESS, 4 / 3)  # sigma(3 - 2 t)
    assert found == pytest.approx([0.75, 1 / (1 + math.exp(-1)), 1 / (1 + math.exp(1)), 1 / (1 + math.exp(3))])


def test_the_value_by_hand():
    # One site, one bin, two classes (c = 2): h = sigma(0) = .5, so d = .5 + .2 (1 - 2 x .5) = .5 whatever the rate.
    counts = Counts(np.array([[10.0]]), np.array([[4.0]]), 2)
    value, _ = negative(np.array([0.0, 0.0, 0.1]), counts, np.array([0.0]), 0.1)
    assert value == pytest.approx(20 * 0.1 - 10 * math.log(0.5))
    # h = sigma(-2): d = h + .3 (1 - 2 h).
    hard = 1 / (1 + math.exp(2))
    differ = hard + 0.3 * (1 - 2 * hard)
    value, _ = negative(np.array([2.0, 0.0, 0.3]), counts, np.array([0.0]), 0.0)
    by_hand = 20 * 0.3 + 0.02 * 4 - (4 * math.log(differ) + 6 * math.log(1 - differ))
    assert value == pytest.approx(by_hand)


def test_the_slope_is_that_of_the_value():
    counts = Counts(np.array([[30.0, 20, 9], [8, 7, 6]]), np.array([[12.0, 4, 1], [5, 3, 2]]), 3)
    at, sureness = np.array([0.3, -0.4, 0.05, 0.2]), np.array([-0.5, 0.6, 2.0])
    _, slope = negative(at, counts, sureness, 0.04)
    for place in range(4):
        step = np.eye(4)[place] * 1e-6
        up, down = (negative(at + sign * step, counts, sureness, 0.04)[0] for sign in (1, -1))
        assert slope[place] == pytest.approx((up - down) / 2e-6, rel=1e-5)


def test_a_floor_under_the_disagreement_is_found_and_its_absence_too():
    with_errors = explain(expected(0.5, 2.0, [0.1, 0.1]), SURENESS)
    assert with_errors.mid.common == pytest.approx(0.1)
    assert 0.06 <= with_errors.low.common <= 0.1 <= with_errors.high.common <= 0.13
    without = explain(expected(0.5, 2.0, [0.0, 0.0]), SURENESS)
    assert without.mid.common == without.high.common == 0


def test_a_coin_is_not_told_from_errors():
    """Nothing but one bin: no rate is rejected, so the smallest is none."""
    found = explain(Counts(np.array([[1000.0]]), np.array([[200.0]]), 2), np.array([0.5]))
    assert found.low.common == 0
    assert found.high.common >= 0.2


def test_what_a_site_has_on_top_of_the_others_is_found():
    counts = expected(0.5, 2.0, [0.0, 0.3, 0.0])
    found = explain(counts, SURENESS).low
    assert found.common == 0
    excess = excess_range(counts, found, SURENESS)
    assert excess.least[[0, 2]].tolist() == [0, 0]
    assert excess.most[[0, 2]].max() < 0.03
    assert 0.25 <= excess.least[1] <= 0.3 <= excess.most[1] <= 0.35
    assert not excess.harder.any()


@pytest.mark.parametrize(("shift", "slope"), [(1.0, 0.7), (0.5, 0.5), (0.5, 0.4)])
def test_a_site_with_harder_samples_is_not_called_sloppy(shift, slope):
    """Its labels differ more often, and still agree again where the models are sure."""
    counts = expected(0.5, 2.0, [0.0, 0.0, 0.0])
    own = hardness(0.5 - shift, 2.0 * slope, SURENESS, counts.share)
    differing = counts.differing.copy()
    differing[1] = counts.samples[1] * own
    counts = Counts(counts.samples, differing, counts.classes)
    found = explain(counts, SURENESS).low
    excess = excess_range(counts, found, SURENESS)
    assert found.common == 0
    assert excess.least.max() == 0
    assert excess.harder.tolist() == [False, True, False]
    assert excess.most[1] >= STRAY  # it may be errors all the same


def test_a_site_with_harder_samples_and_wrong_labels_keeps_the_floor_alone():
    counts = expected(0.5, 2.0, [0.0, 0.0, 0.0])
    own = hardness(-0.5, 1.4, SURENESS, counts.share)
    differing = counts.differing.copy()
    differing[1] = counts.samples[1] * (own + 0.3 * (1 - counts.share * own))
    counts = Counts(counts.samples, differing, counts.classes)
    excess = excess_range(counts, explain(counts, SURENESS).low, SURENESS)
    assert 0.1 <= excess.least[1] <= 0.3 <= excess.most[1]
    assert (excess.hard[1] >= excess.hard[0]).all()


def test_one_site_too_many_by_luck_is_not_called_sloppy():
    hard = hardness(0.5, 2.0, SURENESS, 4 / 3)
    fit = Explanation(0.0, 0.5, 2.0, 0.0, np.zeros(1), hard)
    samples = np.full((1, 4), 40.0)
    few = Counts(samples, np.round(samples * hard) + np.array([2, 1, 0, 0]), 4)
    assert excess_range(few, fit, SURENESS).least[0] == 0
    many = Counts(samples * 50, samples * 50 * (hard + STRAY / 4), 4)  # certain, but less than what is told from chance
    assert excess_range(many, fit, SURENESS).least[0] == 0


def test_the_range_keeps_what_is_close_to_the_best():
    values = ((-1.3, 0), (-0.8, 0.1), (0, 0.2), (-1.3, 0.3), (-1.4, 0.4))
    fits = [Explanation(value, 0, 1, rate, np.zeros(1), np.zeros(1)) for value, rate in values]
    assert (Range(fits).low.common, Range(fits).mid.common, Range(fits).high.common) == (0.1, 0.2, 0.3)


def test_the_surest_fifth_takes_the_last_bin_in_part():
    counts = Counts(np.array([[60.0, 30, 10]]), np.array([[30.0, 6, 1]]), 2)
    # 20 of 100: all 10 of the surest bin (1 differs) and 10 of the next 30 (2 of 6 differ).
    assert surest_differ(counts, 0.2) == pytest.approx((1 + 2) / 20)


def test_shares_rise_and_stay_below_one():
    found = rising(np.array([1.0, 0, 3, 8]), np.array([10.0, 10, 5, 4]))
    assert found.tolist() == pytest.approx([0.05, 0.05, 0.6, 1.0])
