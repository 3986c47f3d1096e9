"""What is measured beside the battery: looks, the class mix, and whether an audit helps; worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks import battery_judges, battery_looks, battery_prior, does_it_help, looks
from benchmarks.battery_cases import GIVEN, Case, all_cases, development_cases, drawn, made
from benchmarks.looks import FIGURES


def test_sites_dealt_out_by_given_labels_hold_the_same_labels_as_sites_dealt_out_by_true_ones_would():
    """With the same seed, the shares of a class are the same; once of its true labels, once of its given ones."""
    by_true, by_given = (made(Case("iris", "uniform10", way), 1).train for way in ("dirichlet", GIVEN))
    assert np.array_equal(by_true.labels, by_given.labels)
    assert not np.array_equal(by_true.sites, by_given.sites)
    wrong = by_given.labels != by_given.true
    assert wrong.sum() == 15

    def rarity(train) -> float:
        """How frequent the given label of a wrong sample is at its site, compared with that of a right one."""
        own = np.array(
            [
                np.mean(train.labels[train.sites == site] == label)
                for site, label in zip(train.sites, train.labels, strict=True)
            ]
        )
        return float(own[wrong].mean() / own[~wrong].mean())

    assert rarity(by_true) < rarity(by_given)


def test_a_sloppy_site_cannot_be_dealt_out_by_given_labels():
    with pytest.raises(ValueError, match="need the sites first"):
        Case("iris", "sloppy", GIVEN)


def test_development_cases_are_none_of_the_battery():
    assert not {case.name for case in development_cases()} & {case.name for case in all_cases()}
    data = drawn("clouds", 3)
    assert len(data.train) == 2000
    assert data.classes == 8


def line_of(**changed: str) -> dict[str, str]:
    """A line of the looks; everything that is not named is 0.9."""
    line = {"case": "a/uniform10/lot", "seed": "0", "wrong": "20", "skill": "0.9", "cannot_tell": "1", "calls": "12"}
    return line | dict.fromkeys(FIGURES, "0.9") | changed


def test_goals_of_looks_tell_reached_from_missed():
    lines = [
        line_of(covers="0.8", width="0.2", overclaims="0.0", recall_at_least_half="0.7"),
        line_of(covers="1.0", width="0.3", overclaims="0.1", recall_at_least_half="0.2", skill="0.1"),
        line_of(covers="1.0", width="0.6", overclaims="0.0", wrong="0", recall_at_least_half="", calls="3"),
    ]
    found = {name: (value, met) for name, _, value, met in battery_looks.goals(lines)}
    assert found["90 % intervals of all lists that cover the truth: share"] == ("0.933", "reached")
    assert found["width of the intervals: median of the audits"] == ("0.300", "reached")
    assert found["lower ends more than 0.10 above the truth: share of all lists"] == ("0.033", "missed")
    assert found["recall at a claimed precision of 0.5, with skill"] == ("0.700", "reached")
    assert found["calls where no label is wrong: mean"] == ("3.000", "no goal")
    assert battery_looks.reached([1.0], 0.85, 0.97, np.mean) == ("1.000", "missed")  # too wide is missed too


def test_the_class_mix_is_on_only_where_it_is_better_at_uneven_sites():
    def lines(prior: str, *values: float) -> list[dict[str, str]]:
        ways = ("dirichlet", GIVEN)
        return [
            {"case": f"a/uniform10/{way}", "seed": "0", "prior": prior, "average_precision": str(value)}
            for way, value in zip(ways, values, strict=True)
        ]

    assert "It is on by this rule" in battery_prior.verdict([lines("on", 0.9, 0.5), lines("off", 0.7, 0.6)])
    assert "It is off by this rule" in battery_prior.verdict([lines("on", 0.9, 0.5), lines("off", 0.85, 0.6)])


def test_the_test_part_is_clean_and_shares_no_sample():
    data = made(Case("iris", "uniform10"), 0)
    found = does_it_help.with_test_part(data, 0)
    assert (len(found.test), len(found.train)) == (45, 105)
    both = np.concatenate([found.test.features.take(np.arange(45)), found.train.features.take(np.arange(105))])
    assert sorted(map(tuple, both.tolist())) == sorted(map(tuple, data.train.features.take(np.arange(150)).tolist()))
    assert (found.train.labels != found.train.true).any()
    # Right labels: samples that are alike to the last digit have those of the whole.
    whole = dict(zip(map(tuple, data.train.features.take(np.arange(150)).tolist()), data.train.true, strict=True))
    assert [whole[tuple(row)] for row in found.test.features.take(np.arange(45)).tolist()] == list(found.test.labels)


def test_the_share_of_the_way_by_hand():
    values = zip(does_it_help.STAGES, (0.80, 0.85, 0.88, 0.90), (20, 8, 2, 0), strict=True)
    lines = [
        {"case": "a", "seed": "0", "stage": stage, "accuracy": str(value), "wrong": str(wrong)}
        | {"samples": "100", "source": "x"}
        for stage, value, wrong in values
    ]
    assert "| a | 100 | 80.0 | 85.0 | 88.0 | 90.0 | 0.50 | 0.80 | 20, 8, 2 |" in does_it_help.page(lines)


def test_two_people_who_differ_widen_the_interval_and_count_half():
    said = [np.array([True, True, False, False]), np.array([True, False, False, False])]
    found, error = looks.answers(said, [np.array([0, 1]), np.array([2, 3])], np.array([2, 1]))
    assert found.tolist() == [1.5, 0]
    assert error == looks.error_of_reviewers(3, 1) > looks.error_of_reviewers(0, 0)
    one, alone = looks.answers(said[:1], [np.array([0, 1]), np.array([2, 3])], np.array([2, 1]))
    assert one.tolist() == [2, 0]
    assert alone == looks.error_of_reviewers(0, 0)
    case = looks.made_up()[1]
    widths = [
        looks.measure_looks(case.score, case.wrong, error=0.2, runs=3, second=second)["width"]
        for second in (False, True)
    ]
    assert widths[1] > widths[0]


def line_of_judges(**changed: str) -> dict[str, str]:
    """A line of the judges; every figure that is not named is 0.5."""
    names = [f"loss_{name}" for name in ("mean", "knn", "both")]
    names += [f"{kind}_{name}" for kind in ("precision", "auroc") for name in battery_judges.JUDGES]
    return {"case": "a/uniform10/lot", "seed": "0", "taken": "both"} | dict.fromkeys(names, "0.5") | changed


def test_the_page_of_judges_by_hand():
    lines = [
        line_of_judges(precision_auto="0.7"),
        line_of_judges(seed="1", taken="mean", precision_auto="0.4", precision_mean="0.6"),
    ]
    text = battery_judges.page(lines)
    assert (
        "| a/uniform10/lot | both 1, mean 1 | 0.500 | 0.500 | 0.500 | 0.550 | 0.500 | 0.500 | 0.500 | 0.550 |" in text
    )
    assert "`auto` is better than `mean` in 1 of 2 audits, worse in 1, +0.000 on average." in text
