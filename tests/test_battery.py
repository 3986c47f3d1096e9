"""The battery itself: its cases are what they say, and its figures are right, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.battery import Said, Saved, figures, goals, limits, page
from benchmarks.battery_cases import MADE, Case, all_cases, given_labels, made, site_of


def test_there_are_many_cases_and_no_two_of_one_name():
    names = [case.name for case in all_cases()]
    assert len(names) >= 60
    assert len(set(names)) == len(names)
    assert {f"{name}/none/lot" for name in MADE} <= set(names)


@pytest.mark.parametrize("name", ["coin80", "age", "constant", "onehot4", "six"])
def test_made_data_without_errors_has_none_and_another_draw_for_every_seed(name):
    one, two = made(Case(name, "none"), 0), made(Case(name, "none"), 1)
    assert (one.train.labels == one.train.true).all()
    assert not np.array_equal(one.train.labels, two.train.labels)


def test_five_sites_of_unequal_size():
    site = site_of(Case("iris", "none"), np.zeros(1000, np.int64), 3, 0)
    assert np.bincount(site).tolist() == [420, 280, 170, 90, 40]


def test_one_sloppy_site_beside_tidy_ones():
    data = made(Case("coin80", "sloppy"), 0)
    wrong, site = data.train.labels != data.train.true, data.train.sites
    assert wrong[site == "site-2"].mean() == pytest.approx(0.4, abs=0.08)
    assert wrong[site != "site-2"].mean() == pytest.approx(0.03, abs=0.02)


@pytest.mark.parametrize(("errors", "share"), [("uniform5", 0.05), ("uniform30", 0.3), ("conf10", 0.1)])
def test_so_many_labels_are_wrong(errors, share):
    data = made(Case("iris", errors), 3)
    wrong = data.train.labels != data.train.true
    assert wrong.sum() == round(share * 150)


def test_a_confusion_goes_to_one_class():
    data = made(Case("iris", "conf30"), 0)
    wrong = data.train.labels != data.train.true
    pairs = set(zip(data.train.true[wrong].tolist(), data.train.labels[wrong].tolist(), strict=True))
    assert len(pairs) == 3
    assert {(1, 2), (2, 1)} <= pairs  # versicolor and virginica are alike


def test_errors_without_a_name_are_refused():
    with pytest.raises(ValueError, match="could not convert"):
        given_labels(Case("iris", "whim"), made(Case("iris", "none"), 0), np.zeros(3, np.int64), np.zeros(3), 0)


def by_hand() -> tuple[Saved, Said]:
    """Forty labels at two sites; 25 are called at 0.8, of which 15 are wrong; one wrong label is missed."""
    wrong = np.zeros(40, bool)
    wrong[:15], wrong[39] = True, True
    given, site = np.zeros(40, np.int64), np.repeat([0, 1], 20)
    decision = np.where(np.arange(40) < 25, "review", "keep")
    p_wrong = np.where(np.arange(40) < 25, 0.8, 0.1)
    score = -np.arange(40.0)
    saved = Saved(score, np.zeros((40, 2), np.float32), given, wrong.astype(np.int64), site)
    return saved, Said(p_wrong, decision, "calls", 0.9, 5, 30)


def test_figures_by_hand():
    found = figures(*by_hand())
    assert found["calls"] == 25
    assert found["claimed"] == pytest.approx(0.8)
    assert found["precision"] == pytest.approx(15 / 25)
    assert found["over"] == pytest.approx(0.2)
    assert found["recall"] == pytest.approx(15 / 16)
    assert found["site_over"] == pytest.approx(0.8 - 15 / 20)  # the second site has five calls, too few
    assert found["auroc"] == pytest.approx(15 / 16)  # all pairs but those of the label that is last


def test_goals_tell_reached_from_missed():
    line = {"case": "digits/uniform10/lot", "seed": "0", "samples": "40", "source": "x", "said": "calls"}
    line |= {name: str(value) for name, value in figures(*by_hand()).items() if name not in line and value is not None}
    clean = line | {"case": "coin80/none/lot", "wrong": "0", "calls": "1", "over": "", "recall": "", "auroc": ""}
    met = {name: reached for name, _, _, reached in goals([line, clean], [line | {"auroc": "0.95"}])}
    assert met["claimed minus true precision, 20 calls or more: worst"] is False
    assert met["calls per label without errors: worst case"] is False
    assert met["digits, one label in ten wrong: recall"] is True
    assert met["AUROC of the order, 1 audits: mean"] is False
    assert all(reached is None for name, _, _, reached in goals([clean], []) if "recall" in name)
    assert "| digits/uniform10/lot | calls |" in page([line, clean], [])


def test_the_page_names_every_audit_and_site_that_claims_too_much():
    line = {"case": "a/uniform10/lot", "seed": "0", "samples": "40", "source": "x", "said": "calls", "wrong": "9"}
    many = line | {"calls": "25", "over": "0.11", "site_over": "0.3"}
    few = line | {"case": "b/uniform10/lot", "calls": "12", "over": "0.25", "site_over": "0.1"}
    found = limits([many, few, line | {"calls": "9", "over": "0.9"}])
    above = "More than 0.10 is claimed above the truth in 1"
    assert found == [
        f"- Audits with 20 calls or more: 1. {above}: a/uniform10/lot (seed 0) +0.11.",
        f"- Audits with 10 to 19 calls, of which no percentage is stated: 1. {above}: b/uniform10/lot (seed 0) +0.25.",
        f"- The worst site with 10 calls of each audit that has one: 2. {above}: a/uniform10/lot (seed 0) +0.30.",
    ]
