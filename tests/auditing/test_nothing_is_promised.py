"""Where no label is wrong and nothing can be known, the audit says so: no call, no percentage, in no file."""

from __future__ import annotations

import contextlib
import csv
import io
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import fedwinnow
from auditing_material import QUICK, lines
from fedwinnow.auditing.statements import CANNOT, SEEN
from fedwinnow.cli import main
from fedwinnow.deployment.site_audit import AuditedHere, write_order
from fedwinnow.experiment.prepare import prepare
from fedwinnow.experiment.settings import Experiment
from fedwinnow.testing import toy_data
from promises import promises_in, promises_in_json, promises_in_table, promises_in_text

SITES = ("north", "south", "east", "west")
ROWS = 1000


def write_chance(path, strength):
    """1,000 rows, classes 80/20, no label wrong; the first column tells the classes apart a little, or not at all."""
    luck = np.random.RandomState(1)
    rare = luck.rand(ROWS) < 0.2
    columns = luck.normal(size=(ROWS, 3))
    columns[:, 0] += strength * rare
    with path.open("w", newline="", encoding="utf-8") as stream:
        table = csv.writer(stream)
        table.writerow(["hospital", "diagnosis", "age", "pressure", "weight"])
        for number, row in enumerate(columns.round(3).tolist()):
            table.writerow([SITES[number % 4], "ill" if rare[number] else "well", *row])
    return path


QUICK_LOOK = {"rounds": 5, "epochs": 5, "optimizer": "sgd:lr=0.1", "seed": 2}


def audit_by_command(place, strength, *more):
    """The real command on such data: what it printed."""
    data = f"csv:path={write_chance(place / 'chance.csv', strength)},label=diagnosis"
    words = [word for name, value in QUICK_LOOK.items() for word in (f"--{name}", str(value))]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed), pytest.raises(SystemExit) as ended:
        main(["audit", "--data", data, "--site", "hospital", *words, *more, "--out", str(place / "audit")])
    assert ended.value.code == 0
    return printed.getvalue()


@pytest.fixture(scope="module", params=[0.0, 0.6], ids=["by lot", "one weak column"])
def null_audit(request, tmp_path_factory):
    """The folder of an audit of such data, and what was printed."""
    place = tmp_path_factory.mktemp("null")
    return audit_by_command(place, request.param), place / "audit"


def test_no_file_of_the_audit_promises_anything(null_audit):
    _, folder = null_audit
    assert promises_in(folder) == []
    assert {path.name for path in folder.glob("*/report.html")} == {"report.html"}
    for site in SITES:
        counts = json.loads((folder / site / "site.json").read_text(encoding="utf-8"))["counts"]
        assert (counts["said"], counts["to_review"], counts["wrong_at_least"]) == (CANNOT, 0, None)
        assert counts["reason"] in (folder / site / "report.html").read_text(encoding="utf-8")
        rows = lines(folder / site / "audit.csv")
        assert {row["decision"] for row in rows} == {CANNOT}
        assert {row["p_wrong"] for row in rows} == {""}
        score = [float(row["score"]) for row in rows]  # the order is still there
        assert score == sorted(score, reverse=True)
        assert len(set(score)) > 100


def test_the_terminal_promises_nothing_and_says_that_it_cannot_tell(null_audit):
    printed, _ = null_audit
    assert promises_in_text(printed) == []
    assert printed.count(CANNOT) == len(SITES)
    assert "hardly tell these classes apart" in " ".join(printed.split()) or "know none" in printed


def test_json_and_python_promise_nothing(tmp_path):
    assert promises_in_json(json.loads(audit_by_command(tmp_path, 0.0, "--json"))) == []
    luck = np.random.RandomState(0)
    found = fedwinnow.audit(luck.normal(size=(200, 2)), luck.rand(200) < 0.2, sites=np.arange(200) % 3, **QUICK)
    assert promises_in_json({"facts": found.facts, "sites": found.sites, "shown": repr(found)}) == []


def test_what_a_site_is_told_after_a_run_over_the_network_promises_nothing(tmp_path):
    data = toy_data(samples=90)
    stage = prepare(Experiment(data=data, clients=1, method="winnow", rounds=5, test=0.0))
    host = SimpleNamespace(judged=stage.judged, method=stage.method)
    here = AuditedHere(data, host, 0, "north", ("a", "b", "c"), tmp_path, tmp_path / "kept", 5, encoded=False)
    score = torch.linspace(9, -9, 90).double()
    sure = torch.full((90, 3), 0.01).double()  # what the models believe is not taken for held out
    reply = {"score": score, "other": (torch.from_numpy(stage.judged.given) + 1) % 3, "classes": sure}
    reply |= {"worst": torch.arange(60), "near": torch.full((60, 2, 3), -1)}
    write_order(here, {"experiment": {"rounds": 5, "seed": 0}, "clients": 3}, reply)
    assert promises_in(tmp_path) == []
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert SEEN in page
    assert page.count("<figure>") == 60
    rows = lines(tmp_path / "audit.csv")
    assert {row["decision"] for row in rows} == {CANNOT}
    assert [float(row["score"]) for row in rows] == pytest.approx(score.tolist(), rel=1e-4)


@pytest.mark.parametrize(
    "text",
    [
        "93.3 % of the calls on the data itself expected to be right",
        "p_wrong off by 1.3 % on average",
        "<td>80-92 %</td> of this class are wrong",
        "about 150 of them are wrong; false alarms: about 12",
        "probably wrong, of these: 41",
        "precision 0.93, recall 0.8",
    ],
)
def test_the_check_sees_promises(text):
    assert promises_in_text(text)


def test_the_check_sees_figures_in_json_and_tables():
    assert promises_in_json({"self_test": {"recall": 0.9}})
    assert promises_in_json({"counts": [{"estimated_rate": 0.0}]})
    assert promises_in_table("site,estimated_rate\nnorth,0.2\n")
    assert promises_in_json({"self_test": None, "truth": None, "counts": {"estimated_rate": None}}) == []
    assert promises_in_table("site,estimated_rate\nnorth,\n") == []
