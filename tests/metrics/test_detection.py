"""Detection of wrong labels, noisy clients and rates: by hand, and against scikit-learn."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from sklearn.metrics import average_precision_score, f1_score, precision_score, recall_score, roc_auc_score

from fedwinnow.metrics.detection import (
    client_detection,
    identification_accuracy,
    quality_errors,
    rate_errors,
    relabelling,
    sample_detection,
    selection,
    shared_ranks,
)

# --- samples ----------------------------------------------------------------------------------------------------------


def test_samples_by_hand():
    scores = sample_detection([0.9, 0.8, 0.5, 0.5, 0.1], [True, False, True, False, False])
    assert scores["precision"] == 0.5  # one half is not above one half, so two are called
    assert scores["recall"] == 0.5
    assert scores["f1"] == 0.5
    # 0.9 beats all three right ones, 0.5 loses to 0.8, ties with 0.5 and beats 0.1: 4.5 of 6 pairs.
    assert scores["auroc"] == pytest.approx(4.5 / 6)
    # At 0.9: precision 1, half of the recall; at 0.5: 2 of 4, the other half.
    assert scores["average_precision"] == pytest.approx(0.5 * 1 + 0.5 * 0.5)


def test_precision_counts_what_was_called_and_recall_what_there_was():
    scores = sample_detection([0.9, 0.8, 0.1, 0.2], [True, False, True, True])
    assert scores["precision"] == 1 / 2
    assert scores["recall"] == pytest.approx(1 / 3)
    assert scores["f1"] == pytest.approx(2 / 5)


@pytest.mark.parametrize(
    ("p_wrong", "wrong", "undefined"),
    [
        ([], [], {"precision", "recall", "f1", "auroc", "average_precision"}),
        ([0.9, 0.1], [False, False], {"recall", "f1", "auroc", "average_precision"}),
        ([0.9, 0.1], [True, True], {"auroc"}),
        ([0.2, 0.1], [True, False], {"precision"}),
        ([math.nan, 0.9], [False, True], {"auroc", "average_precision"}),
    ],
    ids=["no samples", "nothing wrong", "all wrong", "nothing called", "no number"],
)
def test_undefined_figures_are_none(p_wrong, wrong, undefined):
    scores = sample_detection(p_wrong, wrong)
    assert {name for name, value in scores.items() if value is None} == undefined


def test_equal_values_share_their_rank():
    assert shared_ranks([3, 1, 3, 2]).tolist() == [3.5, 1, 3.5, 2]


def test_calling_nothing_is_no_better_than_calling_wrongly():
    assert sample_detection([0.0, 0.0], [True, False])["f1"] == 0.0
    assert sample_detection([0.0, 1.0], [True, False])["f1"] == 0.0


@settings(max_examples=100, deadline=None)
@given(
    some.lists(
        some.tuples(some.sampled_from([0.0, 0.2, 0.5, 0.51, 0.8, 1.0]) | some.floats(0, 1), some.booleans()),
        min_size=2,
        max_size=40,
    ).filter(lambda pairs: 0 < sum(wrong for _, wrong in pairs) < len(pairs))
)
def test_samples_agree_with_sklearn(pairs):
    p_wrong, wrong = np.array([p for p, _ in pairs]), np.array([w for _, w in pairs])
    scores = sample_detection(p_wrong, wrong)
    called = p_wrong > 0.5
    assert scores["auroc"] == pytest.approx(roc_auc_score(wrong, p_wrong))
    assert scores["average_precision"] == pytest.approx(average_precision_score(wrong, p_wrong))
    assert scores["f1"] == pytest.approx(f1_score(wrong, called, zero_division=0))
    assert scores["recall"] == pytest.approx(recall_score(wrong, called))
    if called.any():
        assert scores["precision"] == pytest.approx(precision_score(wrong, called))


# --- clients ----------------------------------------------------------------------------------------------------------


def test_clients_by_hand():
    assert client_detection([1, 2, 3], [2, 3, 4, 5]) == {
        "precision": pytest.approx(2 / 3),
        "recall": 0.5,
        "exact": False,
    }
    assert client_detection([3, 2], {2, 3}) == {"precision": 1.0, "recall": 1.0, "exact": True}
    assert client_detection([], []) == {"precision": None, "recall": None, "exact": True}
    assert client_detection([], [1]) == {"precision": None, "recall": 0.0, "exact": False}


def test_rates_by_hand():
    scores = rate_errors([0.1, 0.3, 0.8], [0.0, 0.4, 0.8])
    assert scores["mae"] == pytest.approx(0.2 / 3)
    assert scores["mse"] == pytest.approx(0.02 / 3)
    # Deviations (-0.3, -0.1, 0.4) and (-0.4, 0, 0.4): 0.28 / sqrt(0.26 * 0.32).
    assert scores["pearson"] == pytest.approx(0.28 / math.sqrt(0.26 * 0.32))


@pytest.mark.parametrize("estimated", [[0.3, 0.3, 0.3], [0.1 + 0.2, 0.3, 0.3], [0.5, math.nan, math.nan]])
def test_a_constant_has_no_correlation(estimated):
    scores = rate_errors(estimated, [0.1, 0.2, 0.3])
    assert scores["pearson"] is None
    assert scores["mae"] is not None


def test_clients_without_an_estimate_are_left_out():
    assert rate_errors([0.1, math.nan, 0.5], [0.2, 0.3, math.nan]) == {
        "pearson": None,
        "mae": pytest.approx(0.1),
        "mse": pytest.approx(0.01),
    }
    assert rate_errors([], []) == {"pearson": None, "mae": None, "mse": None}


def test_quality_by_hand():
    # True qualities 1, 0.5 and 0.
    assert quality_errors([1.0, 0.4, 0.2], [0.0, 0.5, 1.0])["mse"] == pytest.approx((0 + 0.01 + 0.04) / 3)
    assert quality_errors([], []) == {"pearson": None, "mse": None}


# --- relabelling and selection ----------------------------------------------------------------------------------------


def test_relabelling_by_hand():
    #                     right, spoiled, repaired, still wrong, left wrong
    scores = relabelling(given=[0, 1, 2, 0, 0], after=[0, 2, 1, 2, 0], true=[0, 1, 1, 1, 1])
    assert scores == {
        "count": 3,
        "correct": pytest.approx(1 / 3),
        "spoiled": pytest.approx(1 / 3),
        "accuracy_before": pytest.approx(2 / 5),
        "accuracy_after": pytest.approx(2 / 5),
    }
    assert json.loads(json.dumps(scores))["count"] == 3


def test_relabelling_nothing():
    scores = relabelling([0, 1], [0, 1], [0, 0])
    assert scores == {"count": 0, "correct": None, "spoiled": None, "accuracy_before": 0.5, "accuracy_after": 0.5}


def test_selection_by_hand():
    selected = [[True, True, True, False], [False, False], [True, False], []]
    wrong = [[False, False, True, False], [False, True], [True, True], []]
    scores = selection(selected, wrong)
    assert scores["clients"] == [
        {"precision": pytest.approx(2 / 3), "recall": pytest.approx(2 / 3), "f_score": pytest.approx(2 / 3)},
        {"precision": None, "recall": 0.0, "f_score": 0.0},
        {"precision": 0.0, "recall": None, "f_score": None},
        {"precision": None, "recall": None, "f_score": None},
    ]
    assert scores["precision"] == pytest.approx((2 / 3 + 0) / 2)
    assert scores["recall"] == pytest.approx((2 / 3 + 0) / 2)
    assert scores["f_score"] == pytest.approx((2 / 3 + 0) / 2)
    assert identification_accuracy(selected, wrong) == [0.5, 0.5, 0.5, None]


def test_identification_by_hand():
    assert identification_accuracy([[True, False, True]], [[False, True, True]]) == [pytest.approx(2 / 3)]


def test_selection_of_nobody():
    assert selection([], []) == {"precision": None, "recall": None, "f_score": None, "clients": []}


def test_clients_must_match():
    with pytest.raises(ValueError, match="zip"):
        selection([[True]], [])
