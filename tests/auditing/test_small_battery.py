"""A handful of the battery's cases: data without errors gets no percentage, and digits do."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.battery_cases import Case, made

import fedwinnow

QUICK = {"rounds": 4, "epochs": 3}


def audited(case: Case, rows: int, seed: int, **settings):
    data = made(case, seed)
    part = np.arange(rows)
    found = fedwinnow.audit(
        data.train.features.take(part),
        data.train.labels[part],
        sites=data.train.sites[part],
        seed=seed,
        encoder="none",
        **settings,
    )
    return found, (data.train.labels != data.train.true)[part]


@pytest.mark.parametrize("name", ["coin80", "age", "constant", "onehot4"])
def test_right_labels_that_nobody_can_predict_get_no_percentage(name):
    found, wrong = audited(Case(name, "none"), 300, 5, **QUICK)
    assert not wrong.any()
    assert int(found.flagged.sum()) <= 2
    claims = found.facts["claims"]
    assert claims["precision_at_least"] is None
    assert claims["said"] != "calls" or claims["calls"] <= 2


@pytest.mark.slow
def test_wrong_digits_are_found_and_not_too_many_are_promised():
    found, wrong = audited(Case("digits", "uniform10"), 1797, 0)
    assert found.flagged[wrong].mean() >= 0.8
    claims = found.facts["claims"]
    assert claims["said"] == "calls"
    assert claims["precision_at_least"] <= wrong[found.flagged].mean() + 0.1
