"""Looks from the command line and from Python: audit, review by lot, update, apply and the way back."""

from __future__ import annotations

import csv
import json
import shlex

import pytest

import fedwinnow
from auditing_material import QUICK, SPEC, lines
from fedwinnow.auditing.applying.changes import plan_for
from fedwinnow.auditing.looks import Survey, draw_looks, read_looks
from fedwinnow.cli import main
from looks_material import answer, make_audit


def command(*words, code=0):
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    assert ended.value.code == code


def looked(folder, truth):
    survey = Survey(folder)
    while draw_looks(survey, 30):
        for site in survey.sites:
            for name in read_looks(site.folder):
                answer(site.folder, site.name, name, truth)


@pytest.fixture
def updated(tmp_path):
    """An audit with thirty looks, and the data that it is about."""
    folder = tmp_path / "audit"
    truth = make_audit(folder)
    data = tmp_path / "patients of all.csv"
    with data.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["name", "kind"])
        for site in ("north", "south", "east"):
            writer.writerows([row["id"], row["given"]] for row in lines(folder / site / "audit.csv"))
            facts = json.loads((folder / site / "site.json").read_text(encoding="utf-8"))
            facts["data"]["source"] = f"csv:path={data},label=kind,id=name"
            (folder / site / "site.json").write_text(json.dumps(facts), encoding="utf-8")
    looked(folder, truth)
    command("audit", "--update", folder, "--quiet")
    return folder, truth, data


def test_update_prints_what_was_found(tmp_path, capsys):
    folder = tmp_path / "audit"
    truth = make_audit(folder)
    command("audit", "--update", folder, code=2)
    assert "needed: 10 or more. Look first: fedwinnow review" in capsys.readouterr().err
    looked(folder, truth)
    command("audit", "--update", folder)
    said = " ".join(capsys.readouterr().out.split())
    assert "At least" in said
    assert "from 30 looks" in said
    assert "further looks, from the top of the order, are worth it" in said
    assert "too few looks here" in said
    command("audit", "--update", folder, "--json")
    found = json.loads(capsys.readouterr().out)
    assert found["looks"]["looked"] == 30
    assert [line["site"] for line in found["counts"]] == ["east", "north", "south"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rounds", "3"], "--rounds was given with --update"),
        (["--data", "x.csv"], "--data was given with --update"),
        (["--look-cost", "2"], "--look-cost"),
    ],
)
def test_flags_that_would_do_nothing_are_refused(tmp_path, capsys, words, said):
    command("audit", "--update", tmp_path, *words, code=2)
    assert said in capsys.readouterr().err


def test_apply_says_what_it_will_change_and_the_printed_way_back_works(updated, tmp_path, capsys):
    folder, truth, data = updated
    given = data.read_bytes()
    command("apply", folder, "--accept-above", "0.6", "--out", tmp_path / "new labels.csv")
    first, *_, back = capsys.readouterr().out.strip().splitlines()
    assert "labels will be changed" in first
    assert "90 % interval" in first
    assert "from 30 looks" in first
    assert "were what is suggested" in first
    rows = lines(tmp_path / "new labels.csv")
    unseen = [row for row in rows if row["label_source"] == "audit"]
    right = sum(label == row["kind"] for row in unseen for (_, name), label in truth.items() if name == row["name"])
    expected = plan_for(folder, 0.6).expected
    assert expected.low - 0.05 <= right / len(unseen) <= expected.high + 0.05
    words = shlex.split(back.removeprefix("to undo: "))
    assert words[:2] == ["fedwinnow", "apply"]
    command(*words[1:])
    assert (tmp_path / words[-1]).read_bytes() == given
    command("apply", folder, "--accept-above", "0.6", "--in-place")
    back = capsys.readouterr().out.strip().splitlines()[-1]
    assert data.read_bytes() != given
    command(*shlex.split(back.removeprefix("to undo: "))[1:])
    assert data.read_bytes() == given


def test_labels_change_unseen_only_after_looks(tmp_path, capsys):
    make_audit(tmp_path / "audit", told=True)
    folder = tmp_path / "audit" / "north"
    command("apply", folder, "--accept-above", "0.6", "--out", tmp_path / "new.csv", code=2)
    said = capsys.readouterr().err
    assert "nobody has looked" in said
    assert "--without-looks" in said
    assert plan_for(folder, 0.6, without_looks=True).expected is None
    assert plan_for(folder, 0.6, without_looks=True).unseen > 0
    command("apply", folder, "--without-looks", "--out", tmp_path / "new.csv", code=2)
    assert "without --accept-above" in capsys.readouterr().err


def test_a_label_of_which_nothing_can_be_told_never_changes_unseen(tmp_path):
    make_audit(tmp_path / "audit")
    path = tmp_path / "audit" / "north" / "audit.csv"
    rows = lines(path)
    text = path.read_text(encoding="utf-8")
    path.write_text(
        text.replace(f"{rows[0]['score']},,cannot tell", f"{rows[0]['score']},0.990000,cannot tell"), "utf-8"
    )
    assert plan_for(tmp_path / "audit" / "north", 0.5, without_looks=True).changes == {}


def test_a_review_flag_that_makes_no_sense_is_refused(tmp_path, capsys):
    make_audit(tmp_path / "audit")
    command("review", tmp_path / "audit", "--anchor", "30", "--first", "5", "--no-browser", code=2)
    assert "exclude each other" in capsys.readouterr().err
    command("review", tmp_path / "audit", "--anchor", "30", "--look-cost", "0", "--no-browser", code=2)
    assert "--look-cost" in capsys.readouterr().err


def test_a_real_audit_marks_a_budget_and_takes_looks(tmp_path, patients, truth):
    """The whole way from Python: audit, budget, looks, update."""
    found = fedwinnow.audit(
        data=SPEC.format(path=patients), site="hospital", budget=20, out=tmp_path / "audit", **QUICK
    )
    sites = [tmp_path / "audit" / line["folder"] for line in found.sites]
    marked = [row for site in sites for row in lines(site / "audit.csv") if row["look"] == "yes"]
    assert len(marked) == 20
    survey = Survey(tmp_path / "audit")
    by_site = {(site.name, row["id"]): truth[row["id"]] for site in survey.sites for row in site.rows}
    while draw_looks(survey, 30):
        for site in survey.sites:
            for name in read_looks(site.folder):
                answer(site.folder, site.name, name, by_site)
    looks = found.update()
    assert looks["settled"] == "a list"
    called = [number for number, word in enumerate(found.columns["decision"]) if word == "review"]
    right = sum(truth[found.columns["id"][number]] != found.columns["given"][number] for number in called)
    assert looks["calls"] is None or looks["calls"]["low"] <= right / len(called) + 0.05
    assert (found.p_wrong[called] >= 0.5).all()
    again = fedwinnow.update_audit(tmp_path / "audit")
    assert again.looks == looks
    with pytest.raises(fedwinnow.errors.UsageError, match="out="):
        fedwinnow.audit(data=SPEC.format(path=patients), site="hospital", **QUICK).update()
