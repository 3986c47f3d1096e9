"""From indicators to noisy clients, by hand."""

from __future__ import annotations

import pytest
import torch

from fedwinnow.mathematics import noisy_clients
from fedwinnow.mathematics.gaussian_mixture import fit_mixtures
from fedwinnow.mathematics.noisy_clients import completed, most_frequent, noisy_set, prepared


def test_missing_classes_take_the_smallest_value_and_unknown_ones_go():
    table = torch.tensor([[1.0, 0.0, 0.0], [3.0, 5.0, 0.0], [0.0, 4.0, 0.0]])
    present = torch.tensor([[True, False, False], [True, True, False], [False, True, False]])
    # Class 0: client 2 gets min(1, 3); class 1: client 0 gets min(5, 4); nobody has class 2.
    assert completed(table, present).tolist() == [[1, 4], [3, 5], [1, 4]]


def test_every_class_goes_from_0_to_1_and_a_constant_one_is_0():
    table = torch.tensor([[1.0, 7.0], [3.0, 7.0], [2.0, 7.0]])
    assert prepared(table, torch.ones(3, 2, dtype=torch.bool), normalise=True).tolist() == [[0, 0], [1, 0], [0.5, 0]]


def rows(spread: float) -> torch.Tensor:
    """Twelve clean clients, and eight noisy ones that are up to so much noisier, each in its own classes."""
    generator = torch.Generator().manual_seed(2)
    table = 0.5 + 0.1 * torch.rand(20, 6, generator=generator)
    table[12:] += 0.2 + spread * torch.rand(8, 1, generator=generator) * torch.rand(8, 6, generator=generator)
    return table


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("detect", ["careful", "single", "vote"])
def test_clear_cases_are_always_found(covariance, normalise, detect):
    table = rows(spread=0.1)
    points = prepared(table, torch.ones_like(table, dtype=torch.bool), normalise)
    for seed in range(5):
        noisy, agreement = noisy_set(points, detect, seed=seed, covariance=covariance)
        assert noisy.tolist() == [False] * 12 + [True] * 8
        assert 0 < agreement <= 1


def test_a_careful_fit_finds_noisy_clients_that_lie_far_apart():
    # Two-means cuts the noisy clients in two, and EM stays there; the likelihood of a diagonal mixture knows better.
    points = prepared(rows(spread=3.0), torch.ones(20, 6, dtype=torch.bool), normalise=True)
    noisy = torch.arange(20) >= 12
    found = {
        detect: [noisy_set(points, detect, seed=seed)[0] for seed in range(10)] for detect in ("single", "careful")
    }
    assert sum(torch.equal(one, noisy) for one in found["single"]) < 5
    assert all(torch.equal(one, noisy) for one in found["careful"])


def test_a_single_mixture_and_a_vote_have_full_covariances_unless_told(monkeypatch):
    points = prepared(rows(spread=3.0), torch.ones(20, 6, dtype=torch.bool), normalise=True)
    for detect, fits, usual in (("single", 1, "full"), ("vote", 9, "full"), ("careful", 200, "diagonal")):
        for given, expected in ((None, usual), ("full", "full"), ("diagonal", "diagonal")):
            seen = []

            def watched(points, fits, seed, *, covariance, seen=seen, **more):
                seen.append((fits, covariance))
                return fit_mixtures(points, fits, seed, covariance=covariance, **more)

            monkeypatch.setattr(noisy_clients, "fit_mixtures", watched)
            noisy_set(points, detect, seed=0, covariance=given)
            assert set(seen) == {(fits, expected)}


def test_the_most_frequent_set_wins_and_of_equals_the_first():
    a, b, c = [True, False], [False, True], [True, True]
    winner, agreement = most_frequent(torch.tensor([a, b, b, c]))
    assert (winner.tolist(), agreement) == (b, 0.5)
    winner, agreement = most_frequent(torch.tensor([c, a, a, c]))
    assert (winner.tolist(), agreement) == (c, 0.5)
