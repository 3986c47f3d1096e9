"""Near-duplicates and outliers of a site: found, written into its folder, and shown in its report."""

from __future__ import annotations

import csv

import numpy as np
import pytest

import fedwinnow
from fedwinnow.auditing import oddities
from fedwinnow.auditing.oddities import Oddities, oddities_in


@pytest.fixture
def rows():
    return np.random.RandomState(0).normal(size=(80, 8)).astype(np.float32)


def test_a_copy_and_a_stranger(rows):
    rows[3], rows[9] = rows[70], 30
    found = oddities_in(rows)
    assert found.known
    assert found.duplicate[[3, 70]].tolist() == [70, 3]
    assert (found.duplicate >= 0).sum() == 2
    assert np.flatnonzero(found.outlier).tolist() == [9]


def test_rows_that_cannot_be_told_apart_say_nothing():
    found = oddities_in(np.random.RandomState(0).randint(0, 3, (50, 1)).astype(np.float32))
    assert not found.known
    assert not (found.duplicate >= 0).any()


def test_a_large_site_and_a_single_sample_are_not_compared(rows, monkeypatch):
    monkeypatch.setattr(oddities, "MOST", 79)
    assert not oddities_in(rows).known
    assert not oddities_in(rows[:1]).known


def test_another_order():
    found = Oddities(np.array([-1, 2, 1]), np.array([True, False, False])).ordered(np.array([2, 0, 1]))
    assert found.duplicate.tolist() == [2, -1, 0]
    assert found.outlier.tolist() == [False, True, False]


def test_they_are_in_the_folder_of_the_site_and_nowhere_else(rows, tmp_path):
    rows[3], rows[9] = rows[71], 30  # both of the pair at site "odd"
    labels = np.arange(80) % 2
    labels[3] = 0
    sites = np.where(np.arange(80) % 2, "odd", "even")
    fedwinnow.audit(rows, labels, sites=sites, judge="knn", out=tmp_path / "audit")
    with (tmp_path / "audit" / "odd" / "audit.csv").open(encoding="utf-8", newline="") as stream:
        lines = {line["id"]: line for line in csv.DictReader(stream)}
    assert lines["3"]["near_duplicate"] == "71"
    assert lines["71"]["near_duplicate"] == "3"
    assert [name for name, line in lines.items() if line["outlier"]] == ["9"]
    page = (tmp_path / "audit" / "odd" / "report.html").read_text(encoding="utf-8")
    assert "1 pair of samples are almost the same" in " ".join(page.split())
    assert "has two different labels" in page
    for name in ("audit.json", "sites.csv"):
        text = (tmp_path / "audit" / name).read_text(encoding="utf-8")
        assert "duplicate" not in text
        assert "outlier" not in text
