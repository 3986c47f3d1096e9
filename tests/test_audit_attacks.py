"""The attacks: their data are what they say, the false calls are counted, and a site with harder samples gets none."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.attack_cases import ATTACKS, OTHER_SITE, TOLD_APART_BY_NOBODY
from benchmarks.audit_attacks import false_calls, goal, page
from benchmarks.battery import Said, Saved

import fedwinnow
from fedwinnow.data.content_hash import contents_in

BY_NAME = {attack.name: attack for attack in ATTACKS}


@pytest.mark.parametrize("attack", [one for one in ATTACKS if "fashion" not in one.name], ids=lambda one: one.name)
def test_the_data_are_what_the_name_says(attack):
    if "segment" in attack.name:
        pytest.skip("needs a table that is not part of the project")
    train = attack.data(4).train
    assert train.true is not None
    wrong = train.labels != train.true
    assert wrong.any() == ("permuted" in attack.name)
    assert set(train.sites[wrong]) <= {f"site-{OTHER_SITE + 1}"}
    copies = len(train) - len(set(contents_in(train.features).tolist()))
    assert (copies > 300) == (attack.kind == "copies")
    other = attack.data(5).train
    assert not (np.array_equal(train.labels, other.labels) and np.array_equal(train.sites, other.sites))


def test_names_are_unique_and_there_are_enough():
    assert len(BY_NAME) == len(ATTACKS) >= 30


def saved(wrong: list[bool]) -> Saved:
    """Four labels, the last two at the second site."""
    given = np.array(wrong).astype(np.int64)
    return Saved(np.zeros(4), np.zeros((4, 2), np.float32), given, np.zeros(4, np.int64), np.array([0, 0, 1, 1]))


def said(called: list[bool]) -> Said:
    """These labels are called."""
    return Said(np.full(4, 0.7), np.where(called, "review", "keep"), "calls", 0.9, 1, 2)


def test_false_calls_by_hand():
    none, second = saved([False] * 4), saved([False, False, True, False])
    assert false_calls(ATTACKS[0], none, said([True, False, True, True])) == 3
    assert false_calls(ATTACKS[0], second, said([True, False, True, True])) == 1


def line(case: str, calls: int, kind: str = "copies") -> dict[str, str]:
    """A line of the table."""
    return {
        "case": case, "kind": kind, "seed": "0", "wrong": "0", "samples": "1000", "said": "calls", "skill": "0.5",
        "calls": str(calls), "false_calls": str(calls), "claimed": "", "precision": "", "recall": "", "source": "abc",
    }  # fmt: skip


def test_the_goal_names_what_misses_it():
    text = goal([line("a", 5), line("b", 6), line("c", 900, TOLD_APART_BY_NOBODY[0])])[0]
    assert "1 of 2 audits reach it; missed: b (seed 0) 0.006. 11 false calls in 2000 labels." in text
    assert "| copies | b | 1e+03 | calls 1 | 0.5 | 6 | 6 |" in page([line("b", 6)], [])


def test_a_site_with_harder_samples_gets_no_call_and_is_told_why(tmp_path):
    """Six clouds, at one site with noise on top: 24 right labels were called here."""
    train = BY_NAME["six-noisy-here"].data(100).train
    found = fedwinnow.audit(
        train.features.take(np.arange(len(train))),
        train.labels,
        sites=train.sites,
        seed=100,
        encoder="none",
        out=tmp_path / "audit",
    )
    assert not found.flagged.any()
    here, there = ((tmp_path / "audit" / site / "report.html").read_text("utf-8") for site in ("site-2", "site-1"))
    assert "samples that are harder here, as from another scanner" in here
    assert "samples that are harder here" not in there
