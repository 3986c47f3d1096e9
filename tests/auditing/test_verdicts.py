"""How the labels of a site are ranked, what is called, and when nothing can be said."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from fedwinnow.auditing.audit import AuditSettings, with_threshold_chosen
from fedwinnow.auditing.audit_folder import verdicts_of
from fedwinnow.auditing.judging_models import Judged
from fedwinnow.experiment.settings import Experiment
from fedwinnow.scene.scene import Scene
from fedwinnow.testing import toy_data


def judged_by(scene: Scene, score: np.ndarray) -> Judged:
    nothing = (np.zeros(0, np.int64), np.zeros((0, 2, 3), np.int64))
    compared = dict.fromkeys(range(scene.clients), nothing)
    return Judged(SimpleNamespace(scene=scene, encoding=None), score, (scene.given + 1) % scene.classes, compared)


def claiming(scene: Scene, p_wrong: np.ndarray, rate: float = 0.1):
    """Claims of this p_wrong, with skill and the same rate at every site."""
    rates = np.full(scene.clients, rate)
    finding = SimpleNamespace(
        skilled=True,
        rates=rates,
        most_rates=rates,
        explanation=SimpleNamespace(common=rate),
        nothing_found=lambda site: False,
        can_tell=lambda site: rate > 0,
    )
    by_site = [p_wrong[scene.holdings.of(site)] for site in range(scene.clients)]
    return SimpleNamespace(finding=finding, p_wrong=by_site, known=np.ones(scene.classes, bool))


def test_without_claims_there_is_an_order_and_nothing_more():
    scene = Scene.make(toy_data(), clients=3, seed=0)
    score = np.random.RandomState(0).normal(size=len(scene.given))
    for verdict in verdicts_of(judged_by(scene, score), None, 0.5):
        assert (np.diff(verdict.score) < 0).all()
        assert set(verdict.decision) == {"cannot tell"}
        assert np.isnan(verdict.p_wrong).all()
        assert (verdict.suggested != verdict.given).all()
        assert verdict.counts()["said"] == "cannot tell"


def test_a_site_with_too_few_samples_is_not_judged():
    scene = Scene.make(toy_data(samples=27), clients=3, seed=0)
    for verdict in verdicts_of(judged_by(scene, np.zeros(27)), claiming(scene, np.full(27, 0.9)), 0.5):
        assert set(verdict.decision) == {"too few"}
        assert np.isnan(verdict.p_wrong).all()
        assert verdict.counts()["reason"] == "There are too few samples to judge."


def test_a_label_is_called_from_the_threshold_on():
    scene = Scene.make(toy_data(), clients=1, seed=0)
    p_wrong = np.full(len(scene.given), 0.1)
    p_wrong[[3, 5]] = 0.5, 0.9
    (verdict,) = verdicts_of(judged_by(scene, p_wrong), claiming(scene, p_wrong), 0.5)
    assert sorted(verdict.p_wrong[verdict.flagged].tolist()) == [0.5, 0.9]
    assert (verdict.suggested == verdict.given).tolist() == (~verdict.flagged).tolist()
    assert verdict.counts()["to_review"] == 2
    assert verdict.counts()["precision_at_least"] is None  # fewer than 20 calls: no percentage
    (verdict,) = verdicts_of(judged_by(scene, p_wrong), claiming(scene, p_wrong), 0.500001)
    assert verdict.flagged.tolist() == [True] + [False] * (len(scene.given) - 1)


def test_twenty_calls_have_a_percentage():
    scene = Scene.make(toy_data(), clients=1, seed=0)
    p_wrong = np.full(len(scene.given), 0.1)
    p_wrong[:20] = 0.8
    (verdict,) = verdicts_of(judged_by(scene, p_wrong), claiming(scene, p_wrong), 0.5)
    assert verdict.counts()["precision_at_least"] == pytest.approx(0.8)
    # At a rate of 0.1, 120 labels have 12 wrong ones on average, and 7 or more in 95 of 100 cases.
    assert (len(scene.given), verdict.counts()["wrong_at_least"]) == (120, 7)


@pytest.mark.parametrize(("allowed", "threshold"), [(0.15, 0.71), (0.3, 0.21), (0.0, 1.0), (0.5, 0.01)])
def test_the_share_of_right_labels_chooses_the_threshold(allowed, threshold):
    # From .71 on there is one call, .1 of it right; from .21 on two, (.1 + .3) / 2 = .2; then (.1 + .3 + .8) / 3.
    settings = AuditSettings(Experiment(), false_alarms=allowed)
    claims = SimpleNamespace(p_wrong=[np.array([0.9, 0.2]), np.array([0.7, np.nan])])
    assert with_threshold_chosen(settings, claims).threshold == pytest.approx(threshold)
    assert with_threshold_chosen(settings, None).threshold == 1.0
