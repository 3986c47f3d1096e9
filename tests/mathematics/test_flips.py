"""Which class is mistaken for which: the steps by hand, and equal to EM on everything pooled."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedwinnow.mathematics.class_rates import posterior, rates_by_class
from fedwinnow.mathematics.flips import Flips

TABLE = torch.tensor([[0.0, 0.75, 0.25], [0.5, 0.0, 0.5], [1.0, 0.0, 0.0]]).double()
ANSWERS = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.2, 0.6]]).double()
GIVEN = torch.tensor([1, 0])


def test_at_first_any_other_class_is_as_likely():
    assert Flips.start(3).flat.tolist() == [[0, 0.5, 0.5], [0.5, 0, 0.5], [0.5, 0.5, 0]]


def test_the_evidence_by_hand():
    # first: 0.6 * 0.75 + 0.1 * 0 against 0.3; second: 0.2 * 0.5 + 0.6 * 1 against 0.2
    expected = [math.log(0.45 / 0.3), math.log(0.7 / 0.2)]
    assert Flips(TABLE).log_ratio(ANSWERS, GIVEN).tolist() == pytest.approx(expected)


def test_expected_counts_by_hand():
    found = Flips(TABLE).statistics(ANSWERS, GIVEN, torch.tensor([0.5, 0.7]).double())
    # the first label can only have been 0; the second was 1 or 2 as 0.1 to 0.6
    assert found.tolist() == [
        pytest.approx([0.0, 0.5, 0.0]),
        pytest.approx([0.1, 0.0, 0.0]),
        pytest.approx([0.6, 0.0, 0.0]),
    ]


def test_the_m_step_by_hand():
    counts = torch.tensor([[9.0, 3.0, 1.0], [0.0, 9.0, 0.0], [0.0, 2.0, 9.0]])
    # one is added to each; the diagonal is not a flip
    assert Flips.start(3).maximised(counts).flat.tolist() == [
        pytest.approx([0.0, 4 / 6, 2 / 6]),
        pytest.approx([0.5, 0.0, 0.5]),
        pytest.approx([1 / 4, 3 / 4, 0.0]),
    ]


def test_certain_answers_and_a_single_class_give_numbers():
    sure = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).double()
    assert Flips.start(2).log_ratio(sure, torch.tensor([0, 0])).isfinite().all()
    alone = Flips.start(1)
    assert alone.statistics(torch.ones(2, 1).double(), torch.tensor([0, 0]), torch.zeros(2).double()).tolist() == [[0]]


def pooled_em(answers, labels, site, sites, classes, steps):
    """EM on everything in one place, sample by sample; no code is shared with the method's."""
    table = [[0.0 if t == c else 1 / (classes - 1) for c in range(classes)] for t in range(classes)]
    rates = [[0.5] * classes for _ in range(sites)]
    for _ in range(steps):
        counts = [[0.0] * classes for _ in range(classes)]
        wrongs = [[[] for _ in range(classes)] for _ in range(sites)]
        for p, c, k in zip(answers, labels, site, strict=True):
            wrong = sum(p[t] * table[t][c] for t in range(classes)) * rates[k][c]
            right = p[c] * (1 - rates[k][c])
            wrongs[k][c].append(wrong / (wrong + right))
            for t in range(classes):
                counts[t][c] += p[t] * table[t][c] * rates[k][c] / (wrong + right)
        for k, of_site in enumerate(wrongs):
            together = [value for of_class in of_site for value in of_class]
            overall = sum(together) / len(together)
            rates[k] = [(sum(values) + 2 * overall) / (len(values) + 2) for values in of_site]
        rows = [[0.0 if t == c else counts[t][c] + 1 for c in range(classes)] for t in range(classes)]
        table = [[value / sum(row) for value in row] for row in rows]
    return table, rates


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), sites=st.integers(1, 4), steps=st.integers(1, 6))
def test_sums_from_the_sites_give_em_on_everything_pooled(seed, sites, steps):
    luck, classes = torch.Generator().manual_seed(seed), 3
    lengths = torch.randint(3, 15, (sites,), generator=luck).tolist()
    answers = [torch.rand(length, classes, generator=luck).double().softmax(1) for length in lengths]
    labels = [torch.randint(0, classes, (length,), generator=luck) for length in lengths]
    flips, rates = Flips.start(classes), [torch.full((classes,), 0.5).double() for _ in range(sites)]
    for _ in range(steps):
        total = torch.zeros(classes, classes).double()
        for k in range(sites):  # at a site
            p_wrong = posterior(flips.log_ratio(answers[k], labels[k]), labels[k], rates[k])
            rates[k] = rates_by_class(p_wrong, labels[k], classes, shrinkage=2.0)
            total += flips.statistics(answers[k], labels[k], p_wrong)
        flips = flips.maximised(total)  # at the server
    place = [k for k, length in enumerate(lengths) for _ in range(length)]
    table, expected = pooled_em(torch.cat(answers).tolist(), torch.cat(labels).tolist(), place, sites, classes, steps)
    assert flips.flat.flatten().tolist() == pytest.approx([value for row in table for value in row], rel=1e-6)
    assert torch.stack(rates).flatten().tolist() == pytest.approx([v for row in expected for v in row], rel=1e-6)
