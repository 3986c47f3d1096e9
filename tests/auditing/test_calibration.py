"""p_wrong means what it says, from two histograms."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedwinnow.auditing.calibration import (
    EDGES,
    MIDDLES,
    by_mixture,
    calibrate,
    histogram,
    reliability,
    rising,
    threshold_for,
    wrong_share,
)

counts = st.lists(st.integers(0, 50), min_size=3, max_size=30)


def bins(**values: float) -> np.ndarray:
    """A histogram with counts in the bins of these scores, written m4 for -4."""
    found = np.zeros(len(MIDDLES))
    for name, count in values.items():
        found[np.searchsorted(EDGES, float(name[1:]) * (-1 if name[0] == "m" else 1), side="right") - 1] = count
    return found


def test_the_share_of_wrong_labels_is_how_far_the_planted_ones_fit_under_the_others():
    # 80 right labels at -4, 20 wrong ones half at 2 and half at 4, as the planted ones are.
    assert wrong_share(bins(p2=5, p4=5), bins(m4=80, p2=10, p4=10)) == pytest.approx(0.2)


def test_planted_labels_that_are_all_alike_are_compared_in_their_own_bin():
    assert wrong_share(bins(p4=20), bins(m4=90, p4=10)) == pytest.approx(0.1)


def test_a_bin_of_right_and_wrong_labels_is_divided():
    # At 2: 10 wrong ones (half of the 20) and 10 right ones, so p_wrong is one half there.
    found = calibrate(bins(p2=5, p4=5), bins(m4=70, p2=20, p4=10))
    # Ten planted labels: nobody may be surer than 11 in 12.
    assert found.p_wrong(np.array([-4.0, 2.25, 4.25])) == pytest.approx([0.0, 0.5, 11 / 12], abs=1e-9)
    assert found.measured


def test_scores_beyond_the_bins_count_in_the_outermost():
    found = histogram(np.array([-1e9, 1e9, 1e9]))
    assert found[0] == 1
    assert found[-1] == 2


@given(counts, st.data())
def test_shares_rise_and_keep_the_number_of_wrong_labels(total, data):
    wrong = [data.draw(st.integers(0, count)) for count in total]
    shares = rising(np.array(wrong, float), np.array(total, float))
    assert len(shares) == len(total)
    assert (np.diff(shares) >= -1e-12).all()
    assert (shares * np.array(total)).sum() == pytest.approx(sum(wrong))


@pytest.mark.parametrize("seed", range(5))
def test_a_measured_calibration_is_right_where_wrong_labels_look_like_planted_ones(seed):
    luck = np.random.RandomState(seed)
    wrong, right, planted = luck.normal(3, 2, 600), luck.normal(-3, 2, 2400), luck.normal(3, 2, 600)
    found = calibrate(histogram(planted), histogram(np.concatenate([wrong, right])))
    stated = found.p_wrong(np.concatenate([wrong, right]))
    truth = np.arange(3000) < 600
    for low in (0.0, 0.5):
        mine = (stated >= low) & (stated < low + 0.5 + low)
        assert abs(stated[mine].mean() - truth[mine].mean()) < 0.12


def test_without_a_self_test_two_gaussians_guess():
    luck = np.random.RandomState(0)
    score = np.concatenate([luck.normal(-5, 1, 300), luck.normal(5, 1, 100)])
    found = by_mixture(score)
    assert not found.measured
    assert found.p_wrong(np.array([-30.0, -5.0, 5.0, 30.0])) == pytest.approx([0, 0, 1, 1], abs=0.01)


def test_the_guess_calls_nothing_wrong_that_the_model_believes():
    luck = np.random.RandomState(0)
    found = by_mixture(np.concatenate([luck.normal(-9, 1, 300), luck.normal(-3, 1, 100)]))
    assert found.p_wrong(np.array([-3.0])) < 0.1


def test_labels_that_are_all_alike_are_not_called_wrong():
    assert by_mixture(np.random.RandomState(0).normal(-5, 1, 400)).p_wrong(np.array([-5.0, -2.5])).max() < 0.5


def test_the_threshold_that_keeps_false_alarms_low():
    p_wrong = np.array([1.0, 0.8, 0.6, 0.1, np.nan])
    assert threshold_for(0.2, p_wrong) == pytest.approx(0.6)  # (0 + .2 + .4) / 3 = .2, with the next one .375
    assert threshold_for(0.1, p_wrong) == pytest.approx(0.8)
    assert threshold_for(0.0, np.array([0.9, 0.5])) is None


def test_reliability_compares_stated_with_observed_shares():
    lines = reliability(np.array([0.1, 0.9]), np.array([1.0, 8.0]), np.array([10.0, 10.0]), bins=2)
    assert [(line["stated"], line["observed"], line["labels"]) for line in lines] == [(0.1, 0.1, 10), (0.9, 0.8, 10)]
