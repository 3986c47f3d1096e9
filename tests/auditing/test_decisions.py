"""decisions.csv is whole at every moment, also with two people at work, and says how far they agree."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedwinnow.auditing.decisions import (
    Decision,
    agreement,
    check_reviewer,
    labels_by_sample,
    read_decisions,
    save_decision,
)
from fedwinnow.errors import DataError, UsageError


def word(sample, reviewer, label, decision="other"):
    return Decision(sample, reviewer, decision, label, "2030-01-01T00:00:00+00:00")


def decided(*words):
    return {(one.id, one.reviewer): one for one in words}


def test_what_was_saved_is_read_and_what_was_taken_back_is_gone(tmp_path):
    assert read_decisions(tmp_path) == {}
    first = word('an "id", with\nlines', "änne", "<b>")
    assert save_decision(tmp_path, first.id, first.reviewer, first) is None
    assert read_decisions(tmp_path) == decided(first)
    second = word(first.id, first.reviewer, "x")
    assert save_decision(tmp_path, first.id, first.reviewer, second) == first
    assert save_decision(tmp_path, first.id, first.reviewer, None) == second
    assert read_decisions(tmp_path) == {}


def test_two_people_at_once_lose_nothing(tmp_path):
    def work(name):
        for number in range(20):
            save_decision(tmp_path, str(number), name, word(str(number), name, "x"))

    threads = [threading.Thread(target=work, args=(name,)) for name in ("anna", "ben")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read_decisions(tmp_path)) == 40


def test_a_broken_file_names_its_line(tmp_path):
    (tmp_path / "decisions.csv").write_text("id,reviewer,decision,label,time\na,anna,perhaps,x,\n")
    with pytest.raises(DataError, match=r"row 1 \(line 2\)"):
        read_decisions(tmp_path)


def test_agreement_by_hand():
    # Same on 3 of 4. Chance: anna says x 3/4, y 1/4; ben x 2/4, y 2/4: 6/16 + 2/16 = 1/2. kappa = (3/4 - 1/2) / (1/2).
    pairs = [("x", "x"), ("x", "x"), ("x", "y"), ("y", "y")]
    words = [word(str(n), "anna", one) for n, (one, _) in enumerate(pairs)]
    words += [word(str(n), "ben", two) for n, (_, two) in enumerate(pairs)]
    assert agreement(decided(*words)) == {"both": 4, "same": 0.75, "kappa": pytest.approx(0.5)}


def test_nobody_agrees_with_oneself_and_skipped_ones_do_not_count():
    assert agreement(decided(word("1", "anna", "x"))) is None
    skipped = word("1", "ben", "", "skip")
    assert agreement(decided(word("1", "anna", "x"), skipped)) is None
    assert labels_by_sample(decided(skipped)) == {}


@given(st.lists(st.sampled_from("xyz"), min_size=1, max_size=20))
def test_perfect_agreement_is_one(labels):
    words = [word(str(n), name, label) for n, label in enumerate(labels) for name in ("anna", "ben")]
    assert agreement(decided(*words)) == {"both": len(labels), "same": 1.0, "kappa": 1.0}


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "x" * 61])
def test_names_that_fit_into_no_cell(name):
    with pytest.raises(UsageError, match="1 to 60 letters"):
        check_reviewer(name)
