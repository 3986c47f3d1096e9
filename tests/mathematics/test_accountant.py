"""The accountant against closed forms and published values."""

from __future__ import annotations

import math

import pytest
from scipy.stats import norm

pytest.importorskip("dp_accounting", reason="the extra 'privacy' is not installed: pip install '.[privacy]'")

from fedwinnow.errors import UsageError
from fedwinnow.mathematics.accountant import FINEST, Mechanism, epsilon_of, least_noise, mechanism, most_advantage
from fedwinnow.mathematics.privacy import ClientPrivacy, SamplePrivacy, find_privacy


def delta_of_gaussian(noise: float, epsilon: float) -> float:
    """The exact delta of one release with Gaussian noise (Balle and Wang 2018, theorem 8), sensitivity 1."""
    half, rest = 1 / (2 * noise), epsilon * noise
    return float(norm.cdf(half - rest) - math.exp(epsilon) * norm.cdf(-half - rest))


@pytest.mark.parametrize("noise", [0.7, 1.0, 3.0])
def test_one_release_costs_what_the_closed_form_says(noise):
    found = epsilon_of(1.0, noise, 1, 1e-5, FINEST)
    assert delta_of_gaussian(noise, found) <= 1e-5
    assert delta_of_gaussian(noise, found - 0.01) > 1e-5


def test_many_releases_cost_as_much_as_one_with_less_noise():
    # 25 sums with noise 5 each tell as much as one with noise 5 / sqrt(25) = 1.
    assert epsilon_of(1.0, 5.0, 25, 1e-5, FINEST) == pytest.approx(epsilon_of(1.0, 1.0, 1, 1e-5, FINEST), abs=0.005)


def test_sampling_by_poisson_is_cheaper_and_agrees_with_the_moments_accountant():
    # Abadi et al. 2016, section 3.2: q = 0.01, noise 4, 10,000 steps, delta 1e-5 give about 1.26 by moments.
    # The distribution of the loss itself gives a little less; the classical composition would give 9.34.
    found = epsilon_of(0.01, 4.0, 10_000, 1e-5, 1e-3)
    assert 0.9 < found < 1.26
    assert found < epsilon_of(1.0, 4.0, 10_000, 1e-5, 1e-2) / 50


@pytest.mark.parametrize(("rate", "count"), [(1.0, 1), (1.0, 40), (0.1, 200)])
@pytest.mark.parametrize("epsilon", [1.0, 8.0])
def test_the_noise_is_the_least_that_keeps_the_budget(rate, count, epsilon):
    noise = least_noise(rate, count, epsilon, 1e-5)
    made = mechanism(rate, count, 1, epsilon, 1e-5)
    assert made == Mechanism(rate, count, noise)
    assert made.epsilon(1, 1e-5, epsilon) <= epsilon
    assert Mechanism(rate, count, noise - 0.002).epsilon(1, 1e-5, epsilon) > epsilon
    assert made.epsilon(0, 1e-5, epsilon) == 0
    assert made.epsilon(2, 1e-5, epsilon) > epsilon


def test_a_budget_that_no_noise_keeps_is_refused():
    with pytest.raises(UsageError, match="larger epsilon"):
        least_noise(1.0, 10**6, 0.01, 1e-9)


def test_no_test_of_membership_can_do_better():
    assert most_advantage(1.0, 0.0) == pytest.approx((math.e - 1) / (math.e + 1))
    assert most_advantage(8.0, 1e-5) == pytest.approx(0.99933, abs=1e-5)


def test_what_is_promised_is_read_and_checked():
    assert find_privacy("sample:epsilon=3,clip=0.5") == SamplePrivacy(epsilon=3, clip=0.5)
    assert find_privacy({"kind": "client", "delta": 1e-6}) == ClientPrivacy(delta=1e-6)
    assert find_privacy(None) is None
    for wrong, words in (
        ("clients", "Did you mean 'client'"),
        ("sample:epsilon=0", "at least 0.01"),
        ("client:sampling=poisson", "sampling"),
        (3, "allowed: client"),
    ):
        with pytest.raises(UsageError, match=words):
            find_privacy(wrong)
