"""The mixture in several dimensions: densities by hand, agreement with scikit-learn, and what cannot be split."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

from fedwinnow.mathematics.gaussian_mixture import (
    ClusterShape,
    Mixtures,
    expected,
    fit_mixtures,
    maximised,
    starts,
    two_means,
)


def two_clouds(gap: float, seed: int = 0, dimensions: int = 4) -> torch.Tensor:
    generator = np.random.default_rng(seed)
    low, high = generator.normal(0.3, 0.1, (12, dimensions)), generator.normal(0.3 + gap, 0.15, (8, dimensions))
    return torch.from_numpy(np.concatenate([low, high]))


def tensor(*rows) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


# --- by hand ----------------------------------------------------------------------------------------------------------


def test_responsibilities_by_hand():
    # Halfway between two equal components only the weights decide.
    share, likelihood = expected(
        tensor([1.0, 7.0]),
        tensor([[0, 7], [2, 7]]),
        tensor([[1, 1], [1, 1]]),
        tensor([0.8, 0.2]),
        ClusterShape("diagonal", 0),
    )
    assert share.flatten().tolist() == pytest.approx([0.8, 0.2])
    # The density is exp(-1/2) / (2 pi) under either component.
    assert float(likelihood) == pytest.approx(-0.5 - math.log(2 * math.pi))


def test_a_full_covariance_by_hand():
    # Covariance [[2, 1], [1, 2]]: determinant 3, and the square of (1, 1) is (1, 1) C^-1 (1, 1) = 2/3.
    factor = torch.linalg.cholesky(tensor([2, 1], [1, 2])).expand(1, 2, 2, 2)
    density = ClusterShape("full", 0).log_density(tensor([1, 1]), tensor([[0, 0], [0, 0]]), factor)
    assert density.flatten().tolist() == pytest.approx([-1 / 3 - 0.5 * math.log(3) - math.log(2 * math.pi)] * 2)


def test_the_m_step_by_hand():
    points = tensor([0, 0], [2, 2], [5, 5])
    means, spread, weights = maximised(points, tensor([[1, 1, 0], [0, 0, 1]]), ClusterShape("full", 0.01))
    assert torch.allclose(means[0], tensor([1, 1], [5, 5]))
    covariance = spread @ spread.transpose(-1, -2)
    assert torch.allclose(covariance[0, 0], tensor([1.01, 1], [1, 1.01]))
    assert torch.allclose(covariance[0, 1], tensor([0.01, 0], [0, 0.01]))
    assert weights[0].tolist() == pytest.approx([2 / 3, 1 / 3])
    _, spread, _ = maximised(points, tensor([[1, 1, 0], [0, 0, 1]]), ClusterShape("diagonal", 0.01))
    assert torch.allclose(spread[0], tensor([1.01, 1.01], [0.01, 0.01]).sqrt())


def test_two_means_come_to_rest():
    points = tensor([0.0], [1.0], [2.0], [10.0], [11.0])
    # From 0 and 1 the border moves right until 2 | 10; the first point is always in the first half.
    assert two_means(points, torch.tensor([[0, 1], [4, 3]])).int().tolist() == [[0, 0, 0, 1, 1]] * 2
    # Without a move every point goes to the nearer of the two, the first on a tie.
    assert two_means(points, torch.tensor([[0, 2]]), moves=0).int().tolist() == [[0, 0, 1, 1, 1]]


def test_a_start_never_takes_the_same_point_twice_where_others_differ():
    pairs = starts(tensor([0.0], [0.0], [1.0]), 500, seed=0)
    assert {tuple(pair) for pair in pairs.tolist()} == {(0, 2), (1, 2)}


def test_the_larger_component():
    # The norms of (3, 0) and (2, 2) are 3 and 2.83, their sums 3 and 4.
    mixtures = Mixtures(tensor([[3, 0], [2, 2]]), tensor([0.5, 0.5]), torch.tensor([[False, True, True]]), tensor(0.0))
    assert mixtures.larger("norm").tolist() == [[True, False, False]]
    assert mixtures.larger("sum").tolist() == [[False, True, True]]


# --- against scikit-learn ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("covariance", "theirs"), [("full", "full"), ("diagonal", "diag")])
def test_agrees_with_sklearn(covariance, theirs):
    points = two_clouds(0.8)
    ours = fit_mixtures(points, 1, seed=0, covariance=covariance)
    fitted = GaussianMixture(2, covariance_type=theirs, random_state=0).fit(points.numpy())
    order, their_order = ours.means[0, :, 0].argsort(), fitted.means_[:, 0].argsort()
    assert np.allclose(ours.means[0][order], fitted.means_[their_order], atol=1e-6)
    assert np.allclose(ours.weights[0][order], fitted.weights_[their_order], atol=1e-6)
    assert ours.larger()[0].tolist() == (fitted.predict(points.numpy()) == their_order[1]).tolist()


def test_many_starts_find_what_many_seeds_of_sklearn_find():
    points = two_clouds(0.12, seed=3, dimensions=8)
    ours = fit_mixtures(points, 2000, seed=0).larger().numpy()
    first = np.zeros(len(points), bool)
    first[12:] = True
    theirs = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for seed in range(40):
            fitted = GaussianMixture(2, random_state=seed).fit(points.numpy())
            larger = np.linalg.norm(fitted.means_, axis=1).argmax()
            theirs.append(fitted.predict(points.numpy()) == larger)
    # Neither always finds the same set; the mean share of every point in the larger component agrees.
    assert len(np.unique(ours, axis=0)) > 1
    assert np.allclose(ours.mean(0), np.mean(theirs, 0), atol=0.25)


# --- many fits --------------------------------------------------------------------------------------------------------


def test_a_fit_does_not_depend_on_the_others():
    points = two_clouds(0.12, seed=3, dimensions=8)
    many = fit_mixtures(points, 300, seed=5).second
    assert torch.equal(many[:7], fit_mixtures(points, 7, seed=5).second)
    assert not torch.equal(many, fit_mixtures(points, 300, seed=6).second)


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
@pytest.mark.parametrize(
    "points",
    [torch.ones(6, 3), torch.zeros(4, 2), torch.ones(1, 5)],
    ids=["equal points", "zeros", "one point"],
)
def test_what_cannot_be_split_is_not(points, covariance):
    assert not fit_mixtures(points, 20, seed=0, covariance=covariance).larger().any()


@settings(max_examples=30, deadline=None)
@given(some.integers(1, 8), some.integers(1, 6), some.integers(0, 100), some.sampled_from([1e-8, 1.0, 1e12]))
def test_few_points_in_many_dimensions_give_numbers(count, dimensions, seed, scale):
    points = torch.from_numpy(np.random.default_rng(seed).normal(size=(count, dimensions)) * scale)
    for covariance in ("full", "diagonal"):
        mixtures = fit_mixtures(points, 5, seed, covariance=covariance)
        assert mixtures.means.isfinite().all()
        assert mixtures.weights.sum(1).tolist() == pytest.approx([1.0] * 5)
        assert not mixtures.larger().all(1).any()
