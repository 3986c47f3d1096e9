"""One mixture over all sites: the steps by hand, and equal to EM on pooled scores."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedwinnow.mathematics.class_rates import posterior, rates_by_class
from fedwinnow.mathematics.shared_mixture import SharedMixture


def mixture(low, high, variance, **more):
    return SharedMixture(torch.tensor([low, high, variance]).double(), **more)


def with_scores(scores):
    """Answers of two classes whose score is this for class 0 as the given label, and the labels."""
    scores = torch.as_tensor(scores).double()
    right = (1 - scores) / (2 - scores)
    return torch.stack([right, 1 - right], 1), torch.zeros(len(scores), dtype=torch.int64)


def test_scores_by_hand():
    answers = torch.tensor([[0.6, 0.3, 0.1]] * 3).double()
    labels = torch.tensor([0, 1, 2])
    assert SharedMixture.start().scores(answers, labels).tolist() == pytest.approx([0.0, 0.5, 1 - 1 / 6])
    plain = SharedMixture.start(relative=False)
    assert plain.scores(answers, labels).tolist() == pytest.approx([0.4, 0.7, 0.9])
    assert mixture(0, 1, 1).scores(*with_scores([0.0, 0.25, 0.9])).tolist() == pytest.approx([0.0, 0.25, 0.9])


def test_the_log_ratio_is_that_of_two_normal_densities():
    scores = torch.tensor([0.0, 0.3, 0.5, 1.0])
    low = torch.distributions.Normal(0.1, 0.2).log_prob(scores)
    high = torch.distributions.Normal(0.9, 0.2).log_prob(scores)
    found = mixture(0.1, 0.9, 0.04).log_ratio(*with_scores(scores))
    assert found.tolist() == pytest.approx((high - low).tolist(), abs=1e-5)


def test_six_numbers_by_hand():
    found = mixture(0, 1, 1).statistics(*with_scores([0.5, 1.0]), torch.tensor([0.25, 1.0]).double())
    assert found.tolist() == [pytest.approx([0.75, 0.375, 0.1875]), pytest.approx([1.25, 1.125, 1.0625])]


def test_the_m_step_by_hand():
    # low holds scores 0 and 0.2, high holds 0.8 twice: means 0.1 and 0.8, variance (2 * 0.01 + 0) / 4
    start = mixture(0.3, 0.6, 0.1)
    total = start.statistics(*with_scores([0.0, 0.2, 0.8, 0.8]), torch.tensor([0.0, 0.0, 1.0, 1.0]).double())
    assert start.maximised(total).flat.tolist() == pytest.approx([0.1, 0.8, 0.005])


def test_a_component_that_holds_nothing_stays_and_a_variance_has_a_floor():
    start = mixture(0.3, 0.6, 0.1)
    total = start.statistics(*with_scores([0.25] * 4), torch.zeros(4).double())
    assert start.maximised(total).flat.tolist() == pytest.approx([0.25, 0.6, 1e-4])


def test_wrong_labels_never_have_the_lower_scores():
    start = mixture(0.3, 0.6, 0.1)
    total = start.statistics(*with_scores([0.9, 0.1]), torch.tensor([0.0, 1.0]).double())
    assert start.maximised(total).flat[:2].tolist() == pytest.approx([0.3, 0.6])


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
    scores = []
    for length in lengths.tolist():
        bad = torch.rand(length, generator=luck) < 0.1 + 0.8 * torch.rand(1, generator=luck)
        noise = 0.1 * torch.randn(length, generator=luck)
        scores.append((torch.where(bad, 0.8, 0.2) + noise).clamp(0, 1).double())
    start = (0.3, 0.7, 0.05)
    shared, rates = mixture(*start), [torch.full((1,), 0.5).double() for _ in range(sites)]
    for _ in range(steps):
        total = torch.zeros(2, 3).double()
        for k, mine in enumerate(scores):  # at a site
            answers, labels = with_scores(mine)
            p_wrong = posterior(shared.log_ratio(answers, labels), labels, rates[k])
            rates[k] = rates_by_class(p_wrong, labels, 1, shrinkage=1.0)
            total += shared.statistics(answers, labels, p_wrong)
        shared = shared.maximised(total)  # at the server
    places = torch.repeat_interleave(torch.arange(sites), lengths)
    expected, weights = pooled_em(torch.cat(scores), places, [0.5] * sites, start, steps)
    assert shared.flat.tolist() == pytest.approx(expected, rel=1e-3)
    assert [float(rate) for rate in rates] == pytest.approx(weights, abs=1e-3)
