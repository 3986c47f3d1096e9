"""One mixture over all sites: the steps by hand, and equal to EM on pooled scores."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedwinnow.parts.shared_mixture import SharedMixture, rates_by_class, sufficient_statistics


def mixture(low, high, variance):
    return SharedMixture.from_flat(torch.tensor([low, high, variance]))


def test_the_log_ratio_is_that_of_two_normal_densities():
    scores = torch.tensor([0.0, 0.3, 0.5, 1.0])
    low = torch.distributions.Normal(0.1, 0.2).log_prob(scores)
    high = torch.distributions.Normal(0.9, 0.2).log_prob(scores)
    found = mixture(0.1, 0.9, 0.04).log_ratio(scores)
    assert found.tolist() == pytest.approx((high - low).tolist(), abs=1e-5)
    assert float(found[2]) == pytest.approx(0.0, abs=1e-6)  # halfway between the means


def test_the_e_step_by_hand():
    # slope (0.8 - 0.2) / 0.1 = 6, middle 0.5: at 0.6 the densities are as 1 to e^0.6; the weights as 3 to 1
    found = mixture(0.2, 0.8, 0.1).p_wrong(torch.tensor([0.6]), torch.tensor([0.25]).double())
    odds = math.exp(0.6) / 3
    assert float(found) == pytest.approx(odds / (1 + odds), rel=1e-6)


def test_six_numbers_by_hand():
    found = sufficient_statistics(torch.tensor([0.5, 1.0]), torch.tensor([0.25, 1.0]))
    assert found.tolist() == [[0.75, 0.375, 0.1875], [1.25, 1.125, 1.0625]]


def test_the_m_step_by_hand():
    # low holds scores 0 and 0.2, high holds 0.8 twice: means 0.1 and 0.8, variance (2 * 0.01 + 0) / 4
    total = sufficient_statistics(torch.tensor([0.0, 0.2, 0.8, 0.8]).double(), torch.tensor([0.0, 0.0, 1.0, 1.0]))
    assert mixture(0.3, 0.6, 0.1).maximised(total).flat.tolist() == pytest.approx([0.1, 0.8, 0.005])


def test_a_component_that_holds_nothing_stays_and_a_variance_has_a_floor():
    total = sufficient_statistics(torch.full((4,), 0.25).double(), torch.zeros(4))
    assert mixture(0.3, 0.6, 0.1).maximised(total).flat.tolist() == pytest.approx([0.25, 0.6, 1e-4])


def test_wrong_labels_never_have_the_lower_scores():
    total = sufficient_statistics(torch.tensor([0.9, 0.1]).double(), torch.tensor([0.0, 1.0]))
    assert mixture(0.3, 0.6, 0.1).maximised(total).flat[:2].tolist() == pytest.approx([0.3, 0.6])


def test_rates_by_hand():
    # the site: 2.2 of 4 are wrong; class 0: (0.2 + 2 * 0.55) / (2 + 2); class 1: (2 + 2 * 0.55) / 4; class 2: 0.55
    found = rates_by_class(torch.tensor([0.2, 0.0, 1.0, 1.0]), torch.tensor([0, 0, 1, 1]), 3, shrinkage=2.0)
    assert found.tolist() == pytest.approx([0.325, 0.775, 0.55], rel=1e-6)


def test_shrinkage_goes_from_each_class_by_itself_to_one_rate():
    p_wrong, labels = torch.tensor([0.2, 0.0, 1.0, 0.6]), torch.tensor([0, 0, 1, 1])
    assert rates_by_class(p_wrong, labels, 2, 1e-9).tolist() == pytest.approx([0.1, 0.8])
    assert rates_by_class(p_wrong, labels, 2, 1e9).tolist() == pytest.approx([0.45, 0.45])


def test_no_rate_is_certain():
    assert rates_by_class(torch.zeros(3), torch.tensor([0, 0, 1]), 2, 1.0).tolist() == pytest.approx([1e-4, 1e-4])
    assert rates_by_class(torch.ones(3), torch.tensor([0, 0, 1]), 2, 1.0).tolist() == pytest.approx([1 - 1e-4] * 2)


def pooled_em(scores, site, rates, start, steps):
    """Textbook EM on all scores together, with one mixing weight per site; no code is shared with the method's."""
    low, high, variance = start
    for _ in range(steps):
        weight = torch.tensor(rates).double()[site]
        clean = (1 - weight) * torch.exp(-((scores - low) ** 2) / (2 * variance))
        wrong = weight * torch.exp(-((scores - high) ** 2) / (2 * variance))
        share = wrong / (clean + wrong)
        rates = [float(share[site == k].mean()) for k in range(len(rates))]
        low = float(((1 - share) * scores).sum() / (1 - share).sum())
        high = float((share * scores).sum() / share.sum())
        squares = (1 - share) * (scores - low) ** 2 + share * (scores - high) ** 2
        variance = float(squares.sum() / len(scores))
    return [low, high, variance], rates


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), sites=st.integers(1, 5), steps=st.integers(1, 12))
def test_sums_from_the_sites_give_em_on_pooled_scores(seed, sites, steps):
    luck = torch.Generator().manual_seed(seed)
    lengths = torch.randint(5, 40, (sites,), generator=luck)
    share = torch.rand(sites, generator=luck).clamp(0.1, 0.9)
    scores = []
    for length, wrong in zip(lengths.tolist(), share.tolist(), strict=True):
        bad = torch.rand(length, generator=luck) < wrong
        noise = 0.1 * torch.randn(length, generator=luck)
        scores.append((torch.where(bad, 0.8, 0.2) + noise).clamp(0, 1).double())
    start = (0.3, 0.7, 0.05)
    shared, rates = mixture(*start), [torch.full((1,), 0.5).double() for _ in range(sites)]
    for _ in range(steps):
        total = torch.zeros(2, 3).double()
        for k, mine in enumerate(scores):  # at a site
            p_wrong = shared.p_wrong(mine, rates[k])
            rates[k] = rates_by_class(p_wrong, torch.zeros(len(mine), dtype=torch.int64), 1, shrinkage=1.0)
            total += sufficient_statistics(mine, p_wrong)
        shared = shared.maximised(total)  # at the server
    places = torch.repeat_interleave(torch.arange(sites), lengths)
    expected, weights = pooled_em(torch.cat(scores), places, [0.5] * sites, start, steps)
    assert shared.flat.tolist() == pytest.approx(expected, rel=1e-4)
    assert [float(rate) for rate in rates] == pytest.approx(weights, abs=2e-4)
