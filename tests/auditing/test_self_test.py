"""What the self-test plants, and what it says of the audit, by hand."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from fedwinnow.auditing.calibration import Calibration
from fedwinnow.auditing.self_test import ANYTHING_ELSE, GATHERED, SelfTest, confusions, plant
from fedwinnow.auditing.training import Judged
from fedwinnow.scene.scene import Scene
from fedwinnow.testing import toy_data


def judged(score, other, scene):
    return Judged(SimpleNamespace(scene=scene), np.array(score, float), np.array(other), {})


def test_confusions_count_by_how_sure_the_models_are():
    scene = SimpleNamespace(classes=3, given=np.array([0, 0, 1, 2]))
    found = confusions(judged([4.0, 1.0, 2.0, -5.0], [1, 1, 2, 0], scene))
    sums = found ** (1 / GATHERED)
    assert sums == pytest.approx(np.array([[0, 0, 0], [5, 0, 0], [0, 2, 0]]))  # the last one the models believe
    assert found[1, 0] / found[2, 1] > 5 / 2  # what gathers counts for more


def test_planted_labels_are_wrong_and_confused_as_the_audit_saw_it():
    scene = Scene.make(toy_data(samples=900), clients=3, seed=0)
    # Wherever the models deny a label, a 1 was called 0 and a 2 was called 1; nothing is called 2.
    score = np.where(scene.given == 2, -3.0, np.where(np.arange(900) % 10 == 0, 6.0, -3.0))
    made = judged(score, (scene.given + 1) % 3, scene)
    copy, planted = plant(made, np.where(score > 0, 0.9, 0.1))
    assert planted.sum() == 90
    assert (copy.given[planted] != scene.given[planted]).all()
    assert (copy.given[~planted] == scene.given[~planted]).all()
    assert not planted[score > 0].any()
    was, now = scene.given[planted], copy.given[planted]
    assert set(zip(was[was > 0].tolist(), now[was > 0].tolist(), strict=True)) == {(1, 0), (2, 1)}
    assert ANYTHING_ELSE < 1


def test_precision_is_that_of_the_calls_a_person_will_see():
    calibration = Calibration(np.array([0.0, 10.0]), np.array([0.0, 1.0]), measured=True)
    planted = np.full(20, 9.0)  # all of them are found, which makes nothing of the audit itself better
    tested = SelfTest(calibration, planted, np.full(80, 1.0), np.ones(20, bool), np.array([1.0, 6.0, 8.0]))
    said = tested.figures(0.5)
    assert said["recall"] == 1
    assert said["precision"] == pytest.approx(0.7)
    assert tested.figures(0.95)["precision"] is None
