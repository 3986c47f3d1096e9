"""A site's rates and what they leave of each class, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from fedwinnow.mathematics.class_rates import posterior, rates_by_class, within_quota


def test_the_e_step_by_hand():
    # class 0: weights 3 to 1, evidence e^0.6 to 1; class 1: even weights, no evidence
    found = posterior(torch.tensor([0.6, 0.0]), torch.tensor([0, 1]), torch.tensor([0.25, 0.5]))
    odds = math.exp(0.6) / 3
    assert found.tolist() == pytest.approx([odds / (1 + odds), 0.5], rel=1e-6)


def test_rates_by_hand():
    # the site: 2.2 of 4 are wrong; class 0: (0.2 + 2 * 0.55) / (2 + 2); class 1: (2 + 2 * 0.55) / 4; class 2: 0.55
    found = rates_by_class(torch.tensor([0.2, 0.0, 1.0, 1.0]), torch.tensor([0, 0, 1, 1]), 3, shrinkage=2.0)
    assert found.tolist() == pytest.approx([0.325, 0.775, 0.55], rel=1e-6)


def test_shrinkage_goes_from_each_class_by_itself_to_one_rate():
    p_wrong, labels = torch.tensor([0.2, 0.0, 1.0, 0.6]), torch.tensor([0, 0, 1, 1])
    assert rates_by_class(p_wrong, labels, 2, 0.0).tolist() == pytest.approx([0.1, 0.8])
    assert rates_by_class(p_wrong, labels, 2, 1e9).tolist() == pytest.approx([0.45, 0.45])


def test_no_rate_is_certain():
    assert rates_by_class(torch.zeros(3), torch.tensor([0, 0, 1]), 2, 1.0).tolist() == pytest.approx([1e-4, 1e-4])
    assert rates_by_class(torch.ones(3), torch.tensor([0, 0, 1]), 2, 1.0).tolist() == pytest.approx([1 - 1e-4] * 2)


def test_a_class_without_samples_has_a_rate_all_the_same():
    assert rates_by_class(torch.ones(1), torch.tensor([0]), 2, 0.0).isfinite().all()


def test_the_quota_by_hand():
    labels = torch.tensor([0, 1, 0, 0, 1, 0])
    p_wrong = torch.tensor([0.9, 0.2, 0.1, 0.6, 0.1, 0.8])
    # class 0: half of four; class 1: a fifth of two is 0.4, which is rounded to none
    assert within_quota(p_wrong, labels, torch.tensor([0.5, 0.8])).tolist() == [0, 0, 1, 1, 0, 0]
    # a quarter of four is one; 0.75 of two is 1.5, which is rounded up
    assert within_quota(p_wrong, labels, torch.tensor([0.75, 0.25])).tolist() == [0, 1, 1, 0, 1, 0]


def test_of_equals_the_first_are_kept_and_absent_classes_do_no_harm():
    labels = torch.tensor([2, 2, 2, 0])
    assert within_quota(torch.full((4,), 0.5), labels, torch.tensor([0.0, 0.0, 0.5])).tolist() == [1, 1, 0, 1]
