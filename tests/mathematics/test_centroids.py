"""Class centroids by hand."""

from __future__ import annotations

import pytest
import torch

from fedwinnow.mathematics.centroids import class_means, likeness, nearest


def test_means_per_class_and_zeros_for_a_class_that_is_absent():
    features = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 2.0]])
    assert class_means(features, torch.tensor([0, 0, 2]), 3).tolist() == [[2, 0], [0, 0], [0, 2]]


def test_the_nearest_is_that_of_the_largest_cosine_and_never_an_unseen_class():
    centroids = torch.tensor([[0.0, 0.0], [10.0, 0.0], [1.0, 1.0]])
    features = torch.tensor([[3.0, 1.0], [3.0, 2.0], [-1.0, -1.0]])
    # cosines with the second and third: .949 and .894; .832 and .981; -.707 and -1
    assert nearest(centroids, features).tolist() == [1, 2, 1]


def test_likeness_is_a_cosine_and_a_new_class_is_welcome():
    before = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    now = torch.tensor([[2.0, 2.0], [0.0, 0.0], [3.0, 4.0], [0.0, 0.0]])
    assert likeness(before, now).tolist() == pytest.approx([0.5**0.5, 0, 1, 0])
