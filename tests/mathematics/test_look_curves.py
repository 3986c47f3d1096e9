"""What looks say about labels that nobody has looked at; every expected number is worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedwinnow.mathematics.look_curves import (
    SHIFTS,
    Curves,
    Estimate,
    drawn_wrong,
    error_of_reviewers,
    estimate,
    estimate_sites,
    listed,
    log_likelihood,
    prior_of_shifts,
    said_wrong,
    shifted,
    summed,
)
from fedwinnow.mathematics.strata import Strata

STRATA = Strata(np.array([10, 50, 127]), np.array([10, 30, 160]))


def two_curves() -> Curves:
    return Curves(np.array([[0.5, 0.1, 0.0], [0.9, 0.5, 0.1]]), np.array([0.75, 0.25]))


# --- the curves ------------------------------------------------------------------------------------------------------


def test_there_are_as_many_curves_as_the_grid_has():
    # 41 pairs of a top and a lower floor (0.4 does not lie below 0.3), 4 slopes, 26 middles, and 7 flat ones
    curves = Curves.over(STRATA)
    assert curves.theta.shape == (41 * 4 * 26 + 7, 3)
    assert curves.weight.sum() == pytest.approx(1)
    assert curves.weight[-7:].sum() == pytest.approx(0.2)
    assert curves.weight[-7:].tolist() == pytest.approx([0.2 * one for one in (0.2, 0.15, 0.15, 0.2, 0.15, 0.1, 0.05)])
    assert curves.theta[-3].tolist() == [0.1, 0.1, 0.1]
    assert (np.diff(curves.theta, axis=1) <= 1e-12).all()


def test_the_first_curve_by_hand():
    # top 0.3, floor 0, slope 0.1, middle -ln 200 - 1; depths ln(5/200), ln(25/200), ln(120/200)
    middle = -math.log(200) - 1
    wanted = [0.3 / (1 + math.exp((math.log(share) - middle) / 0.1)) for share in (0.025, 0.125, 0.6)]
    assert Curves.over(STRATA).theta[0].tolist() == pytest.approx(wanted)
    # the prior of floor 0 beside that of floor 0.003: 0.2 to 0.15
    weight = Curves.over(STRATA).weight
    assert weight[0] / weight[4 * 26] == pytest.approx(0.2 / 0.15)


# --- looks -----------------------------------------------------------------------------------------------------------


def test_a_reviewer_errs_both_ways():
    assert said_wrong(np.array([0.0, 1.0, 0.5]), 0.05).tolist() == pytest.approx([0.05, 0.95, 0.5])


def test_the_likelihood_of_looks():
    # one of two wrong in the first stratum, none of one in the third
    found = log_likelihood(two_curves().theta, np.array([2, 0, 1]), np.array([1, 0, 0]))
    assert found[0] == pytest.approx(math.log(0.5) + math.log(0.5) + math.log(0.95))
    assert found[1] == pytest.approx(math.log(0.86) + math.log(0.14) + math.log(0.86))


def test_the_curves_after_looks():
    # "wrong" once in the second stratum: 0.14 and 0.5; 0.75 x 0.14 = 0.105, 0.25 x 0.5 = 0.125
    after = two_curves().after(np.array([0, 1, 0]), np.array([0, 1, 0]))
    assert after.weight.tolist() == pytest.approx([0.105 / 0.23, 0.125 / 0.23])
    assert after.mean.tolist() == pytest.approx(
        [(0.105 * top + 0.125 * low) / 0.23 for top, low in ((0.5, 0.9), (0.1, 0.5), (0.0, 0.1))]
    )
    assert after.likely().tolist() == pytest.approx([1.0, 0.125 / 0.23, 0.0])


def test_half_an_answer_each_way_counts_as_half():
    after = two_curves().after(np.array([0, 1, 0]), np.array([0, 0.5, 0]))
    odds = 3 * math.sqrt(0.14 * 0.86) / math.sqrt(0.5 * 0.5)
    assert after.weight[0] == pytest.approx(odds / (1 + odds))


def test_an_opinion_is_five_looks_and_no_more_likely_than_none():
    shares = np.array([0.9, 0.5, 0.1])
    looked, found = np.full(3, 5 / 3), 5 / 3 * (0.05 + 0.9 * shares)
    believed = two_curves().after(looked, found).weight
    mixed = two_curves().with_opinions([shares]).weight
    assert mixed.tolist() == pytest.approx(((np.array([0.75, 0.25]) + believed) / 2).tolist())
    assert mixed[1] > 0.25
    assert two_curves().with_opinions([]).weight.tolist() == [0.75, 0.25]


def test_reviewers_who_differ_err_more_often():
    assert error_of_reviewers(0, 0) == pytest.approx(0.05)
    assert error_of_reviewers(30, 0) == 0.05  # never less than assumed
    # 10 pairs that differ on 0.95 of a label are put before: (9.05 + 0.95) / 40 = 0.25; 2 e (1 - e) = 0.25
    assert error_of_reviewers(30, 9) == pytest.approx((1 - math.sqrt(0.5)) / 2, abs=0.002)
    assert error_of_reviewers(30, 30) == 0.4


# --- how many are wrong ----------------------------------------------------------------------------------------------


def test_labels_looked_at_are_wrong_by_the_answer():
    # theta 0.5: "wrong" means wrong in 0.5 x 0.95 / 0.5 = 0.95, "right" in 0.5 x 0.05 / 0.5 = 0.05
    theta = np.full((40000, 1), 0.5)
    luck = np.random.RandomState(0)
    drawn = drawn_wrong(theta, np.array([10]), np.array([10]), np.array([8]), 0.05, luck)
    assert drawn.mean() == pytest.approx(8 * 0.95 + 2 * 0.05, abs=0.02)
    assert drawn.max() <= 10
    drawn = drawn_wrong(theta, np.array([10]), np.array([4]), np.array([1]), 0.05, luck)
    assert drawn.mean() == pytest.approx(6 * 0.5 + 0.95 + 3 * 0.05, abs=0.03)


def test_nothing_is_wrong_where_the_share_is_nothing():
    theta = np.zeros((50, 1))
    luck = np.random.RandomState(0)
    assert drawn_wrong(theta, np.array([10]), np.array([4]), np.array([1]), 0.05, luck).max() == 0


def made(p_wrong, sizes, wrong, looked=None) -> Estimate:
    sizes = np.array(sizes)
    return Estimate(sizes, np.zeros(len(sizes)) if looked is None else np.array(looked), np.array(p_wrong), wrong)


def test_a_list_has_mean_and_interval():
    shares = np.arange(101) / 100
    found = listed(10, shares)
    assert (found.mean, found.low, found.high) == pytest.approx((0.5, 0.05, 0.95))


def test_lists_end_with_strata_or_inside_one():
    wrong = np.tile(np.array([[8, 10]]), (2000, 1))
    result = made([0.8, 0.5], [10, 20], wrong)
    assert [one.labels for one in result.lists()] == [10, 30]
    assert [one.mean for one in result.lists()] == pytest.approx([0.8, 0.6])
    inside = result.first(20)  # 8, and 10 of the 20 below of which half are wrong: 13 of 20
    assert inside.mean == pytest.approx(0.65, abs=0.01)
    assert inside.low < 0.65 < inside.high
    assert result.expected(20) == pytest.approx(13)
    assert result.first(99).labels == 30
    assert result.first(0).high == 1.0
    assert result.calls(0.5) == 30
    assert result.calls(0.6) == 10


def test_looks_are_worth_it_while_they_find_more_than_they_cost():
    result = made([0.8, 0.25, 0.1], [10, 20, 100], np.zeros((1, 3), np.int64), [4, 2, 1])
    assert result.worth(0.2) == 6 + 18
    assert result.worth(0.5) == 6
    assert result.worth(0.9) == 0
    assert result.worth(0.05) == 6 + 18 + 99


def test_the_figures_are_the_same_every_time():
    counts = np.array([5, 5, 5]), np.array([5, 2, 0])
    assert estimate(STRATA, *counts).lists() == estimate(STRATA, *counts).lists()


def test_looks_move_the_estimate_and_more_of_them_narrow_it():
    none = estimate(STRATA, [0, 0, 0], [0, 0, 0]).first(10)
    wrong = estimate(STRATA, [5, 0, 0], [5, 0, 0]).first(10)
    right = estimate(STRATA, [5, 0, 0], [0, 0, 0]).first(10)
    assert right.mean < none.mean < wrong.mean
    few, many = (estimate(STRATA, [n, n, n], [n, n // 2, 0]).first(40) for n in (4, 10))
    assert many.high - many.low < few.high - few.low


def test_reviewers_who_differ_widen_the_interval():
    """30 looks; a second reviewer agrees on all of them, or differs on 6."""
    looked = np.array([10, 10, 10])
    agreed = estimate(STRATA, looked, [9, 5, 1], error=error_of_reviewers(30, 0)).first(40)
    differed = estimate(STRATA, looked, [9, 5, 1], error=error_of_reviewers(30, 6)).first(40)
    halves = estimate(STRATA, looked, [8, 5, 2], error=error_of_reviewers(30, 6)).first(40)
    assert differed.high - differed.low > agreed.high - agreed.low
    assert halves.high - halves.low > agreed.high - agreed.low


def test_a_useless_order_gives_no_list():
    """Two of ten wrong everywhere, as with a reviewer who errs or an order that means nothing."""
    result = estimate(STRATA, [10, 10, 10], [2, 2, 2])
    assert result.calls(0.5) == 0
    assert all(one.low < 0.5 for one in result.lists())


# --- sites -----------------------------------------------------------------------------------------------------------


def test_a_shift_is_one_of_the_log_odds():
    # odds 1 and 1/9 times e^2
    assert shifted(np.array([0.5, 0.1, 0.0, 1.0]), np.array(2.0)).tolist() == pytest.approx(
        [math.e**2 / (1 + math.e**2), math.e**2 / (9 + math.e**2), 0.0, 1.0]
    )


def test_the_prior_of_shifts():
    prior = prior_of_shifts(0.0)
    assert prior.shape == (3, 9)
    assert prior.sum(axis=1).tolist() == pytest.approx([1, 1, 1])
    assert prior[0, 4] == pytest.approx(1)  # a spread of 0.1 leaves nothing but 0
    assert prior[1, 5] / prior[1, 4] == pytest.approx(math.exp(-0.5))
    assert prior[2, 6] / prior[2, 4] == pytest.approx(math.exp(-0.5))
    assert SHIFTS[prior_of_shifts(1.2)[1].argmax()] == 1
    assert np.isfinite(prior_of_shifts(50.0)).all()


def test_a_sloppy_site_is_told_from_a_clean_one():
    sizes = np.array([[5, 15, 80], [5, 15, 80]])
    looked = np.array([[5.0, 10, 15], [5, 10, 15]])
    found = np.array([[5.0, 9, 8], [1, 0, 1]])
    sloppy, clean = estimate_sites(STRATA, sizes, looked, found)
    assert sloppy.first(100).low > clean.first(100).high
    assert sloppy.first(100).mean == pytest.approx(0.6, abs=0.15)
    assert clean.first(100).mean < 0.1
    both = summed([sloppy, clean])
    assert both.sizes.tolist() == [10, 30, 160]
    assert both.first(200).mean == pytest.approx((sloppy.first(100).mean + clean.first(100).mean) / 2)


def test_a_site_without_looks_is_like_the_others_but_less_sure():
    sizes = np.array([[5, 15, 80], [5, 15, 80]])
    looked = np.array([[5.0, 10, 15], [0, 0, 0]])
    found = np.array([[5.0, 5, 0], [0, 0, 0]])
    seen, unseen = estimate_sites(STRATA, sizes, looked, found)
    width = [one.first(20).high - one.first(20).low for one in (seen, unseen)]
    assert width[1] > width[0]
    assert unseen.first(20).mean == pytest.approx(seen.first(20).mean, abs=0.2)
