"""Intervals and calibration errors against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedwinnow.metrics.reliability import (
    bin_numbers,
    calibration_error,
    calibration_error_by_chance,
    reliability,
    wilson,
)


def test_wilsons_interval() -> None:
    # 8 of 10: (0.8 + 0.192073) / 1.384146 = 0.716740, and 1.959964 / 1.384146 * sqrt(0.016 + 0.0096036) = 0.226578.
    assert wilson(8, 10) == pytest.approx((0.490162, 0.943318), abs=1e-6)
    z2 = 1.959963984540054**2
    assert wilson(0, 10) == pytest.approx((0, z2 / (10 + z2)))
    assert wilson(10, 10) == pytest.approx((10 / (10 + z2), 1))
    assert wilson(0, 0) is None


def test_the_interval_never_leaves_0_to_1() -> None:
    for count in (1, 2, 7, 1000, 10**7):
        for hits in {0, 1, count // 2, count}:
            low, high = wilson(hits, count) or (-1, -1)
            assert 0 <= low <= hits / count <= high <= 1


def test_the_calibration_error_of_two_bins() -> None:
    confidence, right = [0.9, 0.5, 1.0, 0.6], [True, True, True, False]
    # unsure: 0.55 said, 1 of 2 right; sure: 0.95 said, 2 of 2 right. (2 * 0.05 + 2 * 0.05) / 4
    unsure, sure = reliability(confidence, right, bins=2)
    assert (unsure.samples, unsure.confidence, unsure.accuracy) == (2, pytest.approx(0.55), 0.5)
    assert (sure.samples, sure.confidence, sure.accuracy) == (2, pytest.approx(0.95), 1.0)
    assert calibration_error(confidence, right, bins=2) == pytest.approx(0.05)


def test_bins_have_equal_mass() -> None:
    confidence = np.random.RandomState(0).rand(150)
    assert np.bincount(bin_numbers(confidence)).tolist() == [10] * 15
    assert (np.diff(bin_numbers(np.sort(confidence))) >= 0).all()


def test_equal_confidences_are_in_one_bin_so_that_the_order_does_not_matter() -> None:
    right = np.array([True] * 30 + [False] * 30)
    for order in (np.arange(60), np.arange(60)[::-1], np.random.RandomState(0).permutation(60)):
        assert calibration_error(np.full(60, 0.7), right[order]) == pytest.approx(0.2)


def test_by_chance_is_what_a_calibrated_model_shows() -> None:
    random = np.random.RandomState(1)
    confidence = 0.5 + random.rand(600) / 2
    shown = [calibration_error(confidence, random.rand(600) < confidence) for _ in range(50)]
    assert calibration_error_by_chance(confidence) == pytest.approx(float(np.mean(shown)), rel=0.15)
    assert calibration_error_by_chance(np.ones(50)) == 0
    assert calibration_error_by_chance([]) is None
    assert calibration_error([], []) is None


def test_more_samples_leave_less_to_chance() -> None:
    few, many = (calibration_error_by_chance(np.linspace(0.4, 0.9, count)) or math.inf for count in (100, 10_000))
    assert many < few / 5
