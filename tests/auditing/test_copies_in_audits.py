"""Copies of a sample do not give each other's labels away, and the report tells of them."""

from __future__ import annotations

import json

import numpy as np
from benchmarks.attack_cases import ATTACKS

import fedwinnow


def rare_class_ten_times(out):
    """An audit of random columns whose rare class was copied ten times: no label is wrong."""
    data = next(one for one in ATTACKS if one.name == "random-rare-class-ten-times").data(100)
    train = data.train
    samples = train.features.take(np.arange(len(train)))
    return fedwinnow.audit(samples, train.labels, sites=train.sites, seed=100, out=out, encoder="none")


def test_copies_of_a_rare_class_give_no_call(tmp_path):
    found = rare_class_ten_times(tmp_path / "audit")
    assert not found.flagged.any()
    told = json.loads((tmp_path / "audit" / "site-1" / "site.json").read_text(encoding="utf-8"))["copies"]
    assert told["samples"] == 10 * told["sets"] > 50
    assert told["two_labels"] == 0
    report = (tmp_path / "audit" / "site-1" / "report.html").read_text(encoding="utf-8")
    assert f"{told['samples']} samples are exactly the same as another sample here." in report


def test_copies_with_two_labels_are_told(tmp_path):
    luck = np.random.RandomState(3)
    rows, labels = luck.normal(size=(120, 4)), luck.randint(0, 2, 120)
    rows[60:63], labels[60:63] = rows[:3], 1 - labels[:3]
    fedwinnow.audit(rows, labels, sites=np.repeat(["a"], 120), out=tmp_path / "audit", rounds=1, encoder="none")
    report = (tmp_path / "audit" / "a" / "report.html").read_text(encoding="utf-8")
    assert "6 samples are exactly the same" in report
    assert "3 sets of copies have different labels" in report


def test_a_finished_run_holds_nothing_out_and_says_nothing_of_copies(tmp_path):
    luck = np.random.RandomState(0)
    lines = [f"{luck.normal()},{luck.normal()},{'ab'[place % 2]},{'ns'[place % 2]}\n" for place in range(60)]
    (tmp_path / "t.csv").write_text("x,y,label,site\n" + "".join(2 * lines), encoding="utf-8")
    data = f"csv:path={tmp_path / 't.csv'},label=label,site=site"
    fedwinnow.run(data=data, partition="column", rounds=1, out=tmp_path / "run")
    fedwinnow.audit(run=tmp_path / "run", out=tmp_path / "audit")
    assert "exactly the same" not in (tmp_path / "audit" / "n" / "report.html").read_text(encoding="utf-8")
