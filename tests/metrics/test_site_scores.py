"""Accuracy under a site's own mixture of classes, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from fedwinnow.metrics.site_scores import site_scores


def test_recalls_are_weighted_as_the_site_meets_the_classes():
    # Ten test rows of class 0, of which 5 are right, and twenty of class 1, all right: recalls 1/2 and 1.
    found = site_scores(np.array([[3, 1], [0, 4], [2, 2]]), np.array([10, 20]), np.array([5, 20]))
    assert found.accuracy.tolist() == pytest.approx([(3 * 0.5 + 1) / 4, 1.0, 0.75])
    assert found.balanced.tolist() == pytest.approx([0.75, 1.0, 0.75])
    # 4^2 / (3^2 / 10 + 1^2 / 20) = 16 / 0.95 = 16.8; one class: its 20 rows; 16 / (0.4 + 0.2) = 26.7
    assert found.rows.tolist() == [16, 20, 26]


def test_own_rows_count_as_they_are():
    tested = np.array([[10, 30], [5, 0]])
    found = site_scores(tested, tested, np.array([[4, 27], [5, 0]]))
    assert found.accuracy.tolist() == pytest.approx([31 / 40, 1.0])
    assert found.balanced.tolist() == pytest.approx([(0.4 + 0.9) / 2, 1.0])
    assert found.rows.tolist() == [40, 5]


def test_a_class_without_test_rows_is_left_out_and_a_site_without_any_has_no_figure():
    found = site_scores(np.array([[5, 5], [0, 7], [0, 0]]), np.array([20, 0]), np.array([10, 0]))
    assert found.accuracy[0] == 0.5
    assert np.isnan(found.accuracy[1:]).all()
    assert np.isnan(found.balanced[1:]).all()
    assert found.rows.tolist() == [20, 0, 0]


def test_a_class_that_the_site_does_not_meet_does_not_count():
    found = site_scores(np.array([[6, 0]]), np.array([10, 90]), np.array([3, 90]))
    assert (found.accuracy[0], found.balanced[0], found.rows[0]) == (pytest.approx(0.3), pytest.approx(0.3), 10)
