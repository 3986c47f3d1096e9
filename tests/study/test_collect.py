"""The table of results that is kept: a line per run, with the source that made it."""

from __future__ import annotations

import csv
import runpy
import sys
from pathlib import Path

import fedwinnow
from fedwinnow import files

TOOL = Path(__file__).parents[2] / "tools" / "collect_results.py"
SMALL = {"data": "digits:train=80", "model": "linear", "clients": 3, "rounds": 1, "epochs": 1, "seeds": 2}


def collect(runs, out, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["collect", str(runs), "--out", str(out)])
    runpy.run_path(str(TOOL), run_name="__main__")
    with out.open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_every_line_has_the_source_of_its_run_and_older_lines_stay(tmp_path, monkeypatch):
    fedwinnow.sweep(["fedavg"], out=tmp_path / "runs", **SMALL)
    out = tmp_path / "kept.csv"
    rows = collect(tmp_path / "runs", out, monkeypatch)
    assert [row["source"] for row in rows] == [files.package_source()] * 2
    older = [{key: value for key, value in row.items() if key != "source"} | {"scene": "older"} for row in rows]
    with out.open("w", newline="") as stream:  # a table from before the column
        writer = csv.DictWriter(stream, older[0])
        writer.writeheader()
        writer.writerows(older)
    for path in (tmp_path / "runs").rglob("seed-1/identity.json"):
        path.unlink()  # and a run from before it was noted
    rows = collect(tmp_path / "runs", out, monkeypatch)
    assert {(row["scene"], row["seed"]): row["source"] for row in rows} == {
        ("older", "0"): "",
        ("older", "1"): "",
        ("scene", "0"): files.package_source(),
        ("scene", "1"): "",
    }


def test_a_flag_that_cannot_change_a_number_is_left_out():
    what_matters = runpy.run_path(str(TOOL))["what_matters"]
    words = "fedwinnow run --method fedavg --redo --seed 0 --redo stale --rounds 3 --out x --resume"
    assert what_matters(words.split()) == "fedwinnow run --method fedavg --seed 0 --rounds 3"
