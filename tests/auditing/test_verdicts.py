"""How the labels of a site are ranked, and when there are too few to judge."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from fedwinnow.auditing.audit_folder import verdicts_of
from fedwinnow.auditing.judging_models import Judged
from fedwinnow.scene.scene import Scene
from fedwinnow.testing import toy_data


def verdicts(scene: Scene, score: np.ndarray, threshold: float = 0.5) -> list:
    nothing = (np.zeros(0, np.int64), np.zeros((0, 2, 3), np.int64))
    compared = dict.fromkeys(range(scene.clients), nothing)
    judged = Judged(SimpleNamespace(scene=scene), score, (scene.given + 1) % scene.classes, compared)
    return verdicts_of(judged, threshold)


def test_labels_with_the_same_p_wrong_are_ranked_by_log_odds():
    scene = Scene.make(toy_data(), clients=3, seed=0)
    # The models are so sure that all labels have a p_wrong of 1.
    for verdict in verdicts(scene, 1000 + np.random.RandomState(0).normal(size=len(scene.given))):
        assert len(set(verdict.p_wrong)) == 1
        assert (np.diff(verdict.score) < 0).all()


def test_a_site_with_too_few_samples_is_not_judged():
    scene = Scene.make(toy_data(samples=27), clients=3, seed=0)
    for verdict in verdicts(scene, np.zeros(27)):
        assert set(verdict.decision) == {"too few"}
        assert np.isnan(verdict.p_wrong).all()
        assert verdict.counts()["reason"] == "too few samples to judge"


def test_a_label_is_worth_a_look_from_the_threshold_on():
    scene = Scene.make(toy_data(), clients=1, seed=0)
    score = np.full(len(scene.given), -1.0)
    score[[3, 5]] = 0.0, 2.0  # a p_wrong of exactly one half, and one above
    (verdict,) = verdicts(scene, score, 0.5)
    assert sorted(verdict.p_wrong[verdict.flagged].tolist()) == [0.5, pytest.approx(1 / (1 + np.exp(-2.0)))]
    assert (verdict.suggested == verdict.given).tolist() == (~verdict.flagged).tolist()
    assert verdict.counts()["to_review"] == 2
    (verdict,) = verdicts(scene, score, 0.500001)
    assert verdict.flagged.tolist() == [True] + [False] * (len(scene.given) - 1)
