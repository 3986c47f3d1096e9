"""Which fields speak against a label, worked out by hand on a linear model."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from by_hand import one_client
from fedwinnow.auditing.field_evidence import blocks, field_evidence, shown_value, typical_rows, typical_value
from fedwinnow.data.column import Column
from fedwinnow.data.dataset import FieldRows, Resident

AGE = Column("age", "numeric", False, mean=60.0, std=10.0)
SEX = Column("sex", "categorical", False, categories=("f", "m"))
DOSE = Column("dose", "numeric", True, mean=5.0, std=2.0)


def test_the_change_of_the_score_by_hand():
    """Logits (3 age + sex_m, 0): for a label 1 (the second class) the log-odds against it are 3 age + sex_m.

    Typical of class 1, among the half of its samples that look right (rows 2 and 3): age -1 or -2, of which torch's
    median takes the lower, -2, and sex f. The worst sample, row 0, has age 1 and sex m: 3 * (1 + 2) = 9 and 1 - 0 = 1.
    """
    rows = np.array([[1, 0, 1], [0.5, 1, 0], [-2, 1, 0], [-1, 1, 0], [2, 0, 1]], np.float32)
    client = one_client(rows, [1, 1, 1, 1, 0])
    client.features = FieldRows(rows, (AGE, SEX))
    weights = torch.tensor([[3.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    client.model.load({"weights": torch.cat([weights.flatten(), torch.zeros(2)])})
    score = torch.tensor([4.0, 1.5, -6.0, -3.0, -7.0])
    found = field_evidence(client, score, torch.tensor([0]))
    assert found["against"][0].tolist() == pytest.approx([9.0, 1.0], abs=1e-5)
    assert found["typical"][0].tolist() == [-2.0, 1.0, 0.0]


def test_a_field_that_is_typical_already_says_nothing():
    rows = np.array([[1.0], [1.0]], np.float32)
    client = one_client(rows, [0, 0])
    client.features = FieldRows(rows, (AGE,))
    assert field_evidence(client, torch.zeros(2), torch.tensor([0, 1]))["against"].abs().max() < 1e-6


def test_samples_that_are_no_table_have_no_fields():
    client = one_client([[1.0, 2.0]], [0])
    assert isinstance(client.features, Resident)
    assert field_evidence(client, torch.zeros(1), torch.tensor([0])) == {}


def test_typical_values_by_hand():
    assert typical_value(torch.tensor([[1.0], [2.0], [9.0]]), AGE).tolist() == [2.0]
    assert typical_value(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]), SEX).tolist() == [0.0, 1.0]
    known = torch.tensor([[1.0, 0.0], [3.0, 0.0], [3.0, 0.0], [0.0, 1.0]])
    assert typical_value(known, DOSE).tolist() == [3.0, 0.0]
    missing = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    assert typical_value(missing, DOSE).tolist() == [0.0, 1.0]
    strange = torch.zeros(3, 2)  # no category that the schema knows
    assert typical_value(strange, SEX).tolist() == [0.0, 0.0]


def test_a_class_without_samples_has_zeros():
    found = typical_rows(torch.ones(2, 1), torch.tensor([0, 0]), torch.zeros(2), (AGE,), 3)
    assert found.tolist() == [[1.0], [0.0], [0.0]]


def test_values_are_shown_in_the_words_of_the_table():
    assert shown_value(np.array([0.5]), AGE) == "65"
    assert shown_value(np.array([0.0, 1.0]), SEX) == "m"
    assert shown_value(np.array([0.0, 1.0]), DOSE) == "missing"
    assert shown_value(np.array([1.0, 0.0]), DOSE) == "7"
    assert shown_value(np.zeros(2), SEX) == "none of the known values"
    with_missing = dataclasses.replace(SEX, missing=True)
    assert shown_value(np.array([0.0, 0.0, 1.0]), with_missing) == "missing"
    assert [part.stop for part in blocks((AGE, SEX, DOSE))] == [1, 3, 5]
