"""Task scores: by hand, and against scikit-learn."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from sklearn.metrics import balanced_accuracy_score, confusion_matrix, f1_score, log_loss, top_k_accuracy_score

from fedwinnow.metrics.task import from_logits, task_scores


def test_scores_by_hand():
    # Class 2 is never the label, class 3 is neither label nor prediction.
    scores = task_scores(predicted=[0, 0, 1, 1, 2], labels=[0, 0, 0, 1, 1], classes=4)
    assert scores["confusion"] == [[2, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert scores["accuracy"] == pytest.approx(3 / 5)
    assert scores["per_class_recall"] == [pytest.approx(2 / 3), 0.5, None, None]
    assert scores["balanced_accuracy"] == pytest.approx((2 / 3 + 1 / 2) / 2)
    # F1 of class 0: 2*2/(3+2) = 4/5; of class 1: 2*1/(2+2) = 1/2; of class 2: 0.
    assert scores["macro_f1"] == pytest.approx((4 / 5 + 1 / 2 + 0) / 3)
    assert scores["top5"] is None
    assert json.loads(json.dumps(scores)) == scores


def test_without_samples_nothing_is_defined():
    scores = from_logits(np.zeros((0, 3)), [])
    names = ("accuracy", "balanced_accuracy", "macro_f1", "top5", "loss")
    assert [scores[name] for name in names] == [None] * 5
    assert scores["per_class_recall"] == [None] * 3


def test_logits_by_hand():
    # Odds 3:1 and 1:3 for the first class; both samples belong to the first.
    scores = from_logits([[math.log(3), 0.0], [0.0, math.log(3)]], [0, 0])
    assert scores["accuracy"] == 0.5
    assert scores["loss"] == pytest.approx((math.log(4 / 3) + math.log(4)) / 2)
    assert scores["top5"] is None  # two classes


def test_top5_by_hand():
    logits = np.tile(np.arange(12.0), (4, 1))
    assert from_logits(logits, [11, 7, 6, 0])["top5"] == 0.5  # the best five are 7 ... 11
    # Of twelve equal logits the first five count as the best: a model that says nothing is not always right.
    assert from_logits(np.zeros((12, 12)), np.arange(12))["top5"] == pytest.approx(5 / 12)


def test_a_broken_model_has_no_loss_and_no_top5_hit():
    scores = from_logits(np.full((3, 11), math.nan), [1, 2, 3])
    assert scores["loss"] is None
    assert scores["top5"] == 0


def test_large_logits_do_not_overflow():
    assert from_logits([[1e4, 0.0]], [1])["loss"] == pytest.approx(1e4)


@settings(max_examples=60, deadline=None)
@given(some.lists(some.tuples(some.integers(0, 4), some.integers(0, 4)), min_size=1, max_size=40))
@pytest.mark.filterwarnings("ignore:y_pred contains classes", "ignore:A single label was found")
def test_agrees_with_sklearn(pairs):
    predicted, labels = np.array(pairs).T
    scores = task_scores(predicted, labels, 5)
    assert scores["macro_f1"] == pytest.approx(f1_score(labels, predicted, average="macro", zero_division=0))
    assert scores["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(labels, predicted))
    assert scores["confusion"] == confusion_matrix(labels, predicted, labels=range(5)).tolist()


@settings(max_examples=20, deadline=None)
@given(seed=some.integers(0, 9999), count=some.integers(1, 50))
def test_logits_agree_with_sklearn(seed, count):
    generator = np.random.default_rng(seed)
    logits, labels = generator.normal(size=(count, 12)), generator.integers(12, size=count)
    scores = from_logits(logits, labels)
    probability = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    assert scores["top5"] == pytest.approx(top_k_accuracy_score(labels, logits, k=5, labels=range(12)))
    assert scores["loss"] == pytest.approx(log_loss(labels, probability, labels=range(12)))
