"""The rivals of the audit, against numbers that the functions of their own packages gave for small examples."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks import rivals
from benchmarks.audit_rivals import AUDIT, verdicts

ANGLES = np.deg2rad([0, 10, 25, 45, 60, 78])
X, Y = np.column_stack([np.cos(ANGLES), np.sin(ANGLES)]), np.array([0, 0, 1, 0, 1, 1])
P = np.array(
    [
        (0.9, 0.05, 0.05),
        (0.2, 0.7, 0.1),
        (0.4, 0.35, 0.25),
        (0.1, 0.8, 0.1),
        (0.6, 0.3, 0.1),
        (0.1, 0.1, 0.8),
        (0.05, 0.15, 0.8),
        (0.5, 0.1, 0.4),
    ]
)
GIVEN = np.array([0, 0, 0, 1, 1, 2, 2, 2])


def test_votes_of_neighbours():
    found = rivals.neighbour_votes(rivals.cosine_distances(X), Y, 2, 4)
    assert found[2] == pytest.approx([0.9430, 0.3327], abs=1e-4)
    assert found.argmax(1).tolist() == [0, 0, 0, 1, 1, 1]
    scores = -np.log(found[np.arange(6), Y] + rivals.SMALL)
    assert scores == pytest.approx([0.0514, 0.0559, 1.1004, 1.0788, 0.0581, 0.0489], abs=1e-4)


def test_disagreement_of_neighbours():
    found = rivals.neighbour_disagreement(rivals.cosine_distances(X), Y, 3)
    assert found == pytest.approx([1 / 3, 1 / 3, 1, 1, 1 / 3, 1 / 3])


def test_several_passes_put_the_two_odd_labels_first():
    found = rivals.simifeat(rivals.cosine_distances(np.repeat(X, 5, 0)), np.repeat(Y, 5), 2, passes=5)
    assert np.isfinite(found).all()
    assert found.shape == (30,)


def test_confident_learning_flags_three_of_eight():
    assert np.flatnonzero(rivals.confident_flags(P, GIVEN)).tolist() == [1, 4, 7]
    first = np.argsort(-rivals.confident_learning(P, GIVEN), kind="stable")[:3]
    assert set(first.tolist()) == {1, 4, 7}


def test_self_confidence_and_normalised_margin():
    assert 1 - rivals.self_confidence(P, GIVEN) == pytest.approx([0.9, 0.2, 0.4, 0.8, 0.3, 0.8, 0.8, 0.4])
    quality = [0.925, 0.25, 0.525, 0.85, 0.35, 0.85, 0.825, 0.45]
    assert 1 - rivals.normalised_margin(P, GIVEN) == pytest.approx(quality)


def test_the_margin_of_logits():
    logits = np.array([(2.0, 1.0, 0.0), (1.0, 3.0, 0.0), (4.0, 2.0, 0.0)])
    assert rivals.margin(logits, np.array([0, 0, 0])).tolist() == [1, -2, 2]


def test_what_was_wanted_of_the_order_is_told_as_reached_or_missed():
    own, alone, pooled = (0.9, 0.5), (0.8, 0.6), (0.905, 0.52)
    found = {AUDIT: own, "AUM, each site alone": alone, "regression, pooled": pooled}
    sets = ["digits", "tfidf"]
    by_who = {
        who: {name: {"average_precision": value} for name, value in zip(sets, values, strict=True)}
        for who, values in found.items()
    }
    told = verdicts(by_who, sets)
    assert (
        "1 of 2 sets; behind on tfidf 0.500 against 0.600 (AUM, each site alone). Wanted: 9 of 10, missed." in told[0]
    )
    assert "regression, pooled, 0.713; the audit 0.700. Wanted: level with it, at most 0.01 behind, missed." in told[1]
    assert told[2].endswith("the audit 0.500, logistic regression on pooled data 0.520. Wanted: level, missed.")
