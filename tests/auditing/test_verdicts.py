"""How the labels of a site are ranked, what is called, and when nothing can be said."""

from __future__ import annotations

import numpy as np
import pytest

from fedwinnow.auditing.audit_folder import FEWEST_OF_CLASS, SiteLabels, verdict_at
from fedwinnow.auditing.claims import SiteFinding
from fedwinnow.auditing.judging_models import SiteOpinions
from fedwinnow.auditing.server_half import threshold_for
from fedwinnow.auditing.site_half import SiteHalf, Told

SAMPLES = 120


def finding_of_rate(rate: float, classes: int = 2) -> SiteFinding:
    """A finding with skill, and this rate at every site."""
    return SiteFinding(True, np.ones(classes, bool), np.zeros(36), rate, rate, rate, rate, rate > 0)


def verdict_of(score, p_wrong=None, threshold=0.5, samples=SAMPLES):
    """The verdict of a site with these scores; without p_wrong nothing is claimed."""
    given, rows, none = np.arange(samples) % 2, np.arange(samples), np.zeros(0, np.int64)
    opinions = SiteOpinions(score, 1 - given, none, none)
    labels = SiteLabels("a", ("well", "ill"), given, rows, rows)
    finding = None if p_wrong is None else finding_of_rate(0.1)
    found = np.full(samples, np.nan) if p_wrong is None else p_wrong
    enough = SiteHalf(labels, opinions).enough(Told(common=np.bincount(given) >= FEWEST_OF_CLASS))
    return verdict_at(labels, opinions, finding, found, threshold, enough)


def test_without_claims_there_is_an_order_and_nothing_more():
    verdict = verdict_of(np.random.RandomState(0).normal(size=SAMPLES))
    assert (np.diff(verdict.score) < 0).all()
    assert set(verdict.decision) == {"cannot tell"}
    assert np.isnan(verdict.p_wrong).all()
    assert (verdict.suggested != verdict.given).all()
    assert verdict.counts()["said"] == "cannot tell"


def test_a_site_with_too_few_samples_is_not_judged():
    verdict = verdict_of(np.zeros(9), np.full(9, 0.9), samples=9)
    assert set(verdict.decision) == {"too few"}
    assert np.isnan(verdict.p_wrong).all()
    assert verdict.counts()["reason"] == "There are too few samples to judge."


def test_a_class_with_too_few_samples_is_not_judged():
    given, rows, none = np.array([0] * 30 + [1] * 4), np.arange(34), np.zeros(0, np.int64)
    half = SiteHalf(
        SiteLabels("a", ("well", "ill"), given, rows, rows), SiteOpinions(rows * 1.0, 1 - given, none, none)
    )
    assert half.enough(Told(common=np.bincount(given) >= FEWEST_OF_CLASS)).tolist() == (given == 0).tolist()


def test_a_label_is_called_from_the_threshold_on():
    p_wrong = np.full(SAMPLES, 0.1)
    p_wrong[[3, 5]] = 0.5, 0.9
    verdict = verdict_of(p_wrong, p_wrong)
    assert sorted(verdict.p_wrong[verdict.flagged].tolist()) == [0.5, 0.9]
    assert (verdict.suggested == verdict.given).tolist() == (~verdict.flagged).tolist()
    assert verdict.counts()["to_review"] == 2
    assert verdict.counts()["precision_at_least"] is None  # fewer than 20 calls: no percentage
    verdict = verdict_of(p_wrong, p_wrong, 0.500001)
    assert verdict.flagged.tolist() == [True] + [False] * (SAMPLES - 1)


def test_twenty_calls_have_a_percentage():
    p_wrong = np.full(SAMPLES, 0.1)
    p_wrong[:20] = 0.8
    verdict = verdict_of(p_wrong, p_wrong)
    assert verdict.counts()["precision_at_least"] == pytest.approx(0.8)
    # At a rate of 0.1, 120 labels have 12 wrong ones on average, and 7 or more in 95 of 100 cases.
    assert verdict.counts()["wrong_at_least"] == 7


@pytest.mark.parametrize(("allowed", "threshold"), [(0.15, 0.71), (0.3, 0.21), (0.0, 1.0), (0.5, 0.01)])
def test_the_share_of_right_labels_chooses_the_threshold(allowed, threshold):
    # From .71 on there is one call, .1 of it right; from .21 on two, (.1 + .3) / 2 = .2; then (.1 + .3 + .8) / 3.
    counts = np.bincount((np.array([0.9, 0.2, 0.7]) * 100).astype(np.int64), minlength=101)
    assert threshold_for(counts, allowed) == pytest.approx(threshold)
    assert threshold_for(np.zeros(101), allowed) == 1.0
