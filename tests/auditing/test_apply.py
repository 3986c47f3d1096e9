"""Corrected labels come out in the format they went in, nothing is overwritten, and there is a way back."""

from __future__ import annotations

import csv
import errno
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from auditing_material import lines
from fedwinnow.auditing.applying.apply import Destination, apply_plan
from fedwinnow.auditing.applying.changes import Change, plan_for
from fedwinnow.auditing.applying.table_labels import corrected_csv, reversed_csv
from fedwinnow.auditing.decisions import Decision, save_decision
from fedwinnow.cli import main
from fedwinnow.data.load import load
from fedwinnow.data.sources.csv import Csv
from fedwinnow.errors import DataError, UsageError

AUDIT = [("a", "cat", "dog", "0.9", "review"), ("b", "cat", "dog", "0.6", "review"), ("c", "dog", "dog", "0.1", "keep")]


def site(folder: Path, source: str, rows=AUDIT, classes=("cat", "dog")) -> Path:
    """The folder of an audited site, as small as it can be."""
    folder.mkdir(parents=True)
    with (folder / "audit.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["site", "id", "given", "suggested", "p_wrong", "decision"])
        writer.writerows(("north", *row) for row in rows)
    facts = {"format": 2, "site": "north", "class_names": list(classes), "counts": {}}
    facts["data"] = {"name": "pets", "kind": "rows", "source": source}
    facts |= {"pictures": {}, "texts": {}, "compared": {}}
    (folder / "site.json").write_text(json.dumps(facts), encoding="utf-8")
    return folder


def apply(*words, code=0) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["apply", *map(str, words)])
    assert ended.value.code == code


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "pets.csv"
    path.write_bytes(b'\xef\xbb\xbfname;kind;weight;remark\r\na;cat;3,5;"x;y"\r\nb;cat;4,0;\r\nc;dog;9,1;z\r\n')
    return path


@pytest.fixture
def pets(tmp_path, table):
    return site(tmp_path / "audit", f"csv:path={table},label=kind,id=name")


def test_a_csv_comes_out_as_it_went_in(table, pets, tmp_path):
    save_decision(pets, "a", "anna", Decision.now("a", "anna", "accept", "dog"))
    before = table.read_bytes()
    apply(pets, "--out", tmp_path / "new.csv")
    assert table.read_bytes() == before
    assert (tmp_path / "new.csv").read_bytes() == (
        b"\xef\xbb\xbfname;kind;weight;remark;label_given;label_source\r\n"
        b'a;dog;3,5;"x;y";cat;review\r\nb;cat;4,0;;cat;given\r\nc;dog;9,1;z;dog;given\r\n'
    )
    assert load(f"csv:path={tmp_path / 'new.csv'},label=kind,id=name,ignore=label_given|label_source").train is not None


def test_undo_gives_the_labels_back(table, pets, tmp_path):
    apply(pets, "--out", tmp_path / "new.csv", "--accept-above", "0.5", "--without-looks")
    apply("--undo", tmp_path / "new.csv", "--out", tmp_path / "old.csv")
    assert (tmp_path / "old.csv").read_bytes() == table.read_bytes()


def test_in_place_keeps_a_backup_and_undo_restores_every_byte(table, pets):
    before = table.read_bytes()
    apply(pets, "--in-place", "--accept-above", "0.5", "--without-looks")
    assert table.read_bytes() != before
    assert Path(f"{table}.before-apply").read_bytes() == before
    apply("--undo", table, "--in-place")
    assert table.read_bytes() == before


def test_two_corrections_in_place_are_taken_back_one_after_the_other(table, pets):
    stages = [table.read_bytes()]
    save_decision(pets, "a", "anna", Decision.now("a", "anna", "accept", "dog"))
    apply(pets, "--in-place")
    stages.append(table.read_bytes())
    save_decision(pets, "a", "anna", None)
    save_decision(pets, "b", "anna", Decision.now("b", "anna", "accept", "dog"))
    apply(pets, "--in-place")
    assert table.read_bytes() not in stages
    for stage in reversed(stages):
        apply("--undo", table, "--in-place")
        assert table.read_bytes() == stage
    apply("--undo", table, "--in-place", code=3)


def test_a_corrected_file_that_moved_is_taken_back_where_it_is(table, pets, tmp_path):
    apply(pets, "--out", tmp_path / "new.csv", "--accept-above", "0.5", "--without-looks")
    (tmp_path / "there").mkdir()
    for name in ("new.csv", "new.csv.apply.json"):
        shutil.move(tmp_path / name, tmp_path / "there")
    apply("--undo", tmp_path / "there" / "new.csv.apply.json", "--in-place")
    assert (tmp_path / "there" / "new.csv").read_bytes() == table.read_bytes()


def test_a_receipt_whose_file_is_gone_is_an_error_in_words(table, pets, capsys):
    apply(pets, "--in-place", "--accept-above", "0.5", "--without-looks")
    table.unlink()
    apply("--undo", table, "--in-place", code=3)
    assert "there is no file" in capsys.readouterr().err


def test_in_place_changes_the_data_behind_a_link(table, pets, tmp_path):
    before, link = table.read_bytes(), tmp_path / "link.csv"
    link.symlink_to(table)
    words = ["--data", f"csv:path={link},label=kind,id=name", "--accept-above", "0.5", "--without-looks"]
    apply(pets, "--in-place", *words)
    assert link.is_symlink()
    assert table.read_bytes() != before
    apply("--undo", link, "--in-place")
    assert (link.is_symlink(), table.read_bytes()) == (True, before)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ((b"kind", b"sort"), "has no column 'kind' any more"),
        ((b"c;dog;9,1;z", b"c;dog"), "2 cells"),
        ((b"name;kind", b"name;name"), "two columns are named 'name'"),
    ],
)
def test_a_table_that_was_edited_since_is_an_error_in_words(table, pets, tmp_path, capsys, change, said):
    table.write_bytes(table.read_bytes().replace(*change))
    apply(pets, "--out", tmp_path / "new.csv", "--accept-above", "0.5", "--without-looks", code=3)
    assert said in capsys.readouterr().err


def test_flags_that_would_do_nothing_are_refused(table, pets, tmp_path, capsys):
    for words in (["--out", tmp_path / "new.csv", "--link", "hard"], ["--in-place", "--link", "hard"]):
        apply(pets, "--accept-above", "0.5", "--without-looks", *words, code=2)
        assert "--link hard was given" in capsys.readouterr().err
    apply(pets, "--in-place", "--accept-above", "0.5", "--without-looks")
    for words in (["--accept-above", "0.5", "--without-looks"], ["--reviewer", "anna"], ["--data", "x.csv"]):
        apply("--undo", table, "--in-place", *words, code=2)
        assert f"{words[0]} was given with --undo" in capsys.readouterr().err


def test_undo_after_the_file_was_edited_keeps_the_edit(table, pets):
    apply(pets, "--in-place", "--accept-above", "0.5", "--without-looks")
    table.write_bytes(table.read_bytes().replace(b"9,1", b"9,9"))
    apply("--undo", table, "--in-place")
    assert table.read_bytes().endswith(b"c;dog;9,9;z\r\n")
    assert b"a;cat;3,5" in table.read_bytes()


def test_what_was_given_first_stays_known_when_labels_are_corrected_twice(table, pets, tmp_path):
    save_decision(pets, "a", "anna", Decision.now("a", "anna", "accept", "dog"))
    apply(pets, "--out", tmp_path / "one.csv")
    second = site(
        tmp_path / "again",
        f"csv:path={tmp_path / 'one.csv'},label=kind,id=name",
        [("b", "cat", "dog", "0.9", "accept")],
    )
    apply(second, "--out", tmp_path / "two.csv")
    rows = list(csv.DictReader((tmp_path / "two.csv").open(encoding="utf-8-sig"), delimiter=";"))
    assert [(row["kind"], row["label_given"], row["label_source"]) for row in rows] == [
        ("dog", "cat", "review"),
        ("dog", "cat", "review"),
        ("dog", "dog", "given"),
    ]


def test_nothing_is_overwritten_or_changed_in_place_unasked(table, pets, capsys):
    for words in ([], ["--out", table], ["--out", "x.csv", "--in-place"]):
        apply(pets, "--accept-above", "0.5", "--without-looks", *words, code=2)
    assert "error" in capsys.readouterr().err
    assert not list(table.parent.glob("*.before-apply"))


def test_a_file_that_has_changed_since_is_refused_with_its_row(table, pets, capsys):
    table.write_bytes(table.read_bytes().replace(b"a;cat", b"a;dog"))
    apply(pets, "--in-place", "--accept-above", "0.5", "--without-looks", code=3)
    assert "row 1: the label is 'dog', but the audit judged 'cat'" in capsys.readouterr().err


def test_reviewers_who_differ_leave_a_label_as_it_is(pets):
    save_decision(pets, "a", "anna", Decision.now("a", "anna", "accept", "dog"))
    save_decision(pets, "a", "ben", Decision.now("a", "ben", "keep", "cat"))
    save_decision(pets, "b", "ben", Decision.now("b", "ben", "keep", "cat"))
    plan = plan_for(pets)
    assert plan.disputed == ["a"]
    assert (plan.changes, plan.kept, plan.open) == ({}, 1, 0)
    assert list(plan_for(pets, reviewer="anna").changes) == ["a"]


def test_a_skipped_label_is_undecided(pets):
    save_decision(pets, "a", "anna", Decision.now("a", "anna", "skip", ""))
    assert plan_for(pets).open == 2


def test_what_somebody_has_looked_at_is_not_accepted_unseen(pets):
    save_decision(pets, "a", "anna", Decision.now("a", "anna", "skip", ""))
    save_decision(pets, "b", "ben", Decision.now("b", "ben", "keep", "cat"))
    plan = plan_for(pets, accept_above=0.5, without_looks=True)
    assert (plan.changes, plan.kept, plan.open) == ({}, 1, 1)
    assert plan_for(pets, accept_above=0.5, without_looks=True, reviewer="anna").changes == {}


def test_a_reviewer_who_decided_nothing_is_a_mistake(pets):
    save_decision(pets, "a", "anna", Decision.now("a", "anna", "accept", "dog"))
    with pytest.raises(UsageError, match=r"unknown reviewer 'ana'\. Did you mean 'anna'"):
        plan_for(pets, accept_above=0.5, without_looks=True, reviewer="ana")
    assert list(plan_for(pets, reviewer=" anna ").changes) == ["a"]


@pytest.mark.parametrize("p_wrong", ["0,9", "90", "", "nan", "high"])
def test_a_probability_that_is_none_is_named_with_its_row(tmp_path, p_wrong):
    folder = site(tmp_path / "x", "", [("a", "cat", "dog", p_wrong, "review")])
    with pytest.raises(DataError, match=rf"audit.csv, row 1 \(line 2\): p_wrong is '{p_wrong}'"):
        plan_for(folder, accept_above=0.5, without_looks=True)


def test_decisions_may_be_written_into_the_spreadsheet(tmp_path, table):
    rows = [("a", "cat", "dog", "0.9", "accept"), ("b", "cat", "cat", "0.2", "dog"), ("c", "dog", "dog", "", "keep")]
    plan = plan_for(site(tmp_path / "x", f"csv:path={table},label=kind,id=name", rows))
    assert {name: change.label for name, change in plan.changes.items()} == {"a": "dog", "b": "dog"}
    strange = site(tmp_path / "y", "", [("a", "cat", "dog", "0.9", "perhaps")])
    with pytest.raises(DataError, match=r"row 1 \(line 2\): the decision 'perhaps'"):
        plan_for(strange)


def test_numbers_are_written_as_the_file_writes_them(tmp_path):
    path = tmp_path / "n.csv"
    path.write_text("label,x\n1.0,1\n0.0,2\n1.0,3\n")
    folder = site(tmp_path / "x", f"csv:path={path},label=label", [("2", "0", "1", "0.9", "accept")], ("0", "1"))
    apply(folder, "--out", tmp_path / "new.csv")
    assert [row["label"] for row in lines(tmp_path / "new.csv")] == ["1.0", "1.0", "1.0"]


@pytest.mark.parametrize("labels", [np.array([0, 0, 1]), np.array(["0", "0", "1"]), np.array([[0.0], [0.0], [1.0]])])
def test_npz_there_and_back(tmp_path, labels):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.zeros((3, 2), np.float32), y=labels, extra=np.arange(5))
    folder = site(tmp_path / "x", f"npz:path={path}", [("0", "0", "1", "0.9", "accept")], ("0", "1"))
    apply(folder, "--out", tmp_path / "new.npz")
    with np.load(tmp_path / "new.npz") as new:
        assert new["y"].reshape(-1).astype(float).tolist() == [1, 0, 1]
        assert new["y"].shape == labels.shape
        assert new["label_given"].tolist() == labels.tolist()
        assert new["label_source"].tolist() == ["review", "given", "given"]
        assert len(new["extra"]) == 5
    apply("--undo", tmp_path / "new.npz", "--in-place")
    with np.load(tmp_path / "new.npz") as old:
        assert old["y"].tolist() == labels.tolist()
        assert "label_given" not in old


def test_npz_texts_are_written_as_the_file_writes_them(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.zeros((3, 2), np.float32), y=np.array(["00", "00", "01"]))
    folder = site(tmp_path / "x", f"npz:path={path}", [("0", "0", "1", "0.9", "accept")], ("0", "1"))
    apply(folder, "--in-place")
    with np.load(path) as new:
        assert new["y"].tolist() == ["01", "00", "01"]


@pytest.mark.parametrize(
    ("arrays", "said"), [({"x": [1]}, "no array 'y' any more"), ({"y": [0, 7]}, "row 2: the label 7")]
)
def test_npz_that_was_changed_since_is_an_error_in_words(tmp_path, capsys, arrays, said):
    np.savez(tmp_path / "a.npz", **arrays, class_names=np.array(["cat", "dog"]))
    folder = site(tmp_path / "x", f"npz:path={tmp_path / 'a.npz'}", [("0", "cat", "dog", "0.9", "accept")])
    apply(folder, "--in-place", code=3)
    assert said in capsys.readouterr().err


def test_npz_with_class_names_keeps_numbers(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.zeros((3, 2), np.float32), y=np.array([0, 0, 1]), class_names=np.array(["cat", "dog"]))
    folder = site(tmp_path / "x", f"npz:path={path}", [("0", "cat", "dog", "0.9", "accept")])
    apply(folder, "--in-place")
    with np.load(path) as new:
        assert new["y"].tolist() == [1, 0, 1]


def test_parquet_there_and_back(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="the extra `parquet` is not installed")
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"label": pyarrow.array([0, 0, 1], pyarrow.int16()), "x": [1.0, 2.0, 3.0]}), path)
    folder = site(tmp_path / "x", f"parquet:path={path},label=label", [("1", "0", "1", "0.9", "accept")], ("0", "1"))
    apply(folder, "--out", tmp_path / "new.parquet")
    new = parquet.read_table(tmp_path / "new.parquet")
    assert new.column("label").to_pylist() == [1, 0, 1]
    assert new.column("label").type == pyarrow.int16()
    assert new.column("label_given").to_pylist() == [0, 0, 1]
    apply("--undo", tmp_path / "new.parquet", "--out", tmp_path / "old.parquet")
    assert parquet.read_table(tmp_path / "old.parquet").equals(parquet.read_table(path))


def test_excel_there_and_back(tmp_path):
    openpyxl = pytest.importorskip("openpyxl", reason="the extra `excel` is not installed")
    path = tmp_path / "a.xlsx"
    book = openpyxl.Workbook()
    for row in (["kind", "x", "twice"], ["cat", 1.5, "=2*B2"], [], ["cat", 2.5, "=2*B4"], ["dog", 3.5, "=2*B5"]):
        book.active.append(row)
    book.save(path)
    source = f"excel:path={path},label=kind,ignore=twice"
    folder = site(tmp_path / "x", source, [("2", "cat", "dog", "0.9", "accept")])
    apply(folder, "--out", tmp_path / "new.xlsx")

    def cells(name):
        return [list(row) for row in openpyxl.load_workbook(tmp_path / name).active.iter_rows(values_only=True)]

    assert cells("new.xlsx") == [
        ["kind", "x", "twice", "label_given", "label_source"],
        ["cat", 1.5, "=2*B2", "cat", "given"],
        [None] * 5,
        ["dog", 2.5, "=2*B4", "cat", "review"],
        ["dog", 3.5, "=2*B5", "dog", "given"],
    ]
    apply("--undo", tmp_path / "new.xlsx", "--out", tmp_path / "old.xlsx")
    assert cells("old.xlsx") == cells("a.xlsx")


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_a_file_keeps_its_encoding(tmp_path, encoding, capsys):
    path = tmp_path / "a.csv"
    path.write_bytes("name;kind;x\na;Bär;1,5\nb;Hund;2,5\n".encode(encoding))
    source = f"csv:path={path},label=kind,id=name"
    folder = site(tmp_path / "x", source, [("b", "Hund", "Bär", "0.9", "accept")], ("Bär", "Hund"))
    apply(folder, "--out", tmp_path / "new.csv")
    assert "b;Bär;2,5;Hund;review" in (tmp_path / "new.csv").read_bytes().decode(encoding)
    if encoding == "latin-1":
        folder = site(tmp_path / "y", source, [("b", "Hund", "猫", "0.9", "accept")], ("Bär", "Hund", "猫"))
        apply(folder, "--out", tmp_path / "newer.csv", code=3)
        assert "the letter '猫' of a label cannot be written in the encoding of the file" in capsys.readouterr().err
        assert not (tmp_path / "newer.csv").exists()


def test_parquet_gets_a_class_that_only_other_sites_have(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="the extra `parquet` is not installed")
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"label": pyarrow.array([0, 0, 1], pyarrow.int16()), "x": [1.0, 2.0, 3.0]}), path)
    rows = [("1", "0", "2", "0.9", "accept")]
    folder = site(tmp_path / "x", f"parquet:path={path},label=label", rows, ("0", "1", "2"))
    apply(folder, "--in-place")
    assert parquet.read_table(path).column("label").to_pylist() == [2, 0, 1]
    path.write_bytes(b"no table")
    apply(folder, "--in-place", code=3)


@pytest.fixture
def images(tmp_path):
    for name, content in (("cat/1.png", b"1"), ("cat/deep/2.png", b"2"), ("dog/1.png", b"3")):
        path = tmp_path / "pets" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path / "pets"


def tree(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


MOVED = {"dog/1-2.png": b"1", "dog/deep/2.png": b"2", "dog/1.png": b"3"}
IMAGES = [("cat/1.png", "cat", "dog", "0.9", "accept"), ("cat/deep/2.png", "cat", "dog", "0.9", "accept")]


@pytest.mark.parametrize("link", ["copy", "hard", "symbolic"])
def test_a_folder_becomes_a_corrected_tree(images, tmp_path, link):
    before = tree(images)
    apply(site(tmp_path / "x", f"folder:path={images}", IMAGES), "--out", tmp_path / "new", "--link", link)
    assert tree(tmp_path / "new") == MOVED
    assert tree(images) == before
    apply("--undo", tmp_path / "new", "--out", tmp_path / "old")
    assert tree(tmp_path / "old") == before


def test_a_folder_in_place_and_back(images, tmp_path):
    before = tree(images)
    folder = site(tmp_path / "x", f"folder:path={images}", IMAGES)
    apply(folder, "--in-place")
    assert tree(images) == MOVED
    apply(folder, "--in-place", code=3)
    apply("--undo", images, "--in-place")
    assert tree(images) == before


def test_a_folder_that_cannot_be_made_is_an_error_in_words(images, tmp_path, capsys, monkeypatch):
    folder = site(tmp_path / "x", f"folder:path={images}", IMAGES)
    (tmp_path / "new").write_bytes(b"a file")
    apply(folder, "--out", tmp_path / "new", code=2)
    assert "exists already and is not an empty folder" in capsys.readouterr().err

    def refuse(*parts):
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    apply(folder, "--out", tmp_path / "linked", "--link", "hard", code=3)
    assert "use --link copy" in capsys.readouterr().err
    monkeypatch.setattr(Path, "rename", refuse)
    apply(folder, "--in-place", code=3)
    assert "--undo moves them back" in capsys.readouterr().err


def test_data_that_moved_is_named_anew(table, pets, tmp_path):
    moved = shutil.move(table, tmp_path / "moved.csv")
    apply(pets, "--out", tmp_path / "new.csv", "--accept-above", "0.5", "--without-looks", code=3)
    assert not (tmp_path / "new.csv").exists()
    words = ["--data", f"csv:path={moved},label=kind,id=name"]
    apply(pets, "--out", tmp_path / "new.csv", "--accept-above", "0.5", "--without-looks", *words)
    assert len(lines(tmp_path / "new.csv")) == len(lines(moved))


def test_there_is_nothing_to_undo_where_nothing_was_done(table, capsys):
    apply("--undo", table, "--in-place", code=3)
    assert "nothing to undo" in capsys.readouterr().err


def test_a_whole_audit_is_applied_at_once(audited, patients, truth, tmp_path):
    apply(audited, "--out", tmp_path / "new.csv", "--accept-above", "0.5", "--without-looks")
    rows = lines(tmp_path / "new.csv")
    right = [row["diagnosis"] == truth[row["patient"]] for row in rows]
    given = [row["label_given"] == truth[row["patient"]] for row in rows]
    assert sum(right) > sum(given)
    assert np.mean(right) > 0.95


cells = st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="\ufeff"), max_size=8)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.tuples(st.sampled_from(["cat", "dog"]), cells, st.booleans()), min_size=1, max_size=8))
def test_apply_and_undo_give_any_table_back(tmp_path, rows):
    path = tmp_path / "any.csv"
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream, lineterminator="\n").writerows(
            [["kind", "remark"], *((kind, text) for kind, text, _ in rows)]
        )
    other = {"cat": "dog", "dog": "cat"}
    changes = {
        str(number): Change(kind, other[kind], "review")
        for number, (kind, _, changed) in enumerate(rows, start=1)
        if changed
    }
    before = path.read_bytes()
    path.write_bytes(corrected_csv(path, Csv(path=path, label="kind"), changes))
    corrected = [row["kind"] for row in lines(path)]
    assert corrected == [other[kind] if changed else kind for kind, _, changed in rows]
    assert reversed_csv(path, "kind") == before


# --- the limits, and the order of what is written --------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "changed"), [("0.9", 1), ("0.899999", 1), ("0.900001", 0)])
def test_a_suggestion_is_accepted_from_this_probability_on(tmp_path, limit, changed):
    folder = site(tmp_path / "audit", "", [("1", "cat", "dog", "0.9", "review")])
    assert len(plan_for(folder, float(limit), without_looks=True).changes) == changed
    with pytest.raises(UsageError, match="allowed: above 0 and at most 1"):
        plan_for(folder, 0.0)


def test_in_place_the_backup_and_the_receipt_are_there_before_the_data_changes(tmp_path, monkeypatch):
    data = tmp_path / "pets.csv"
    data.write_text("name,kind\n1,cat\n2,dog\n")
    folder = site(tmp_path / "audit", f"csv:path={data},label=kind,id=name", [("1", "cat", "dog", "0.9", "review")])
    order: list[str] = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: (order.append(Path(b).name), replace(a, b))[1])
    apply_plan(plan_for(folder, 0.5, without_looks=True), Destination(in_place=True))
    assert order == ["pets.csv.before-apply", "pets.csv.apply.json", "pets.csv"]


def test_in_place_the_receipt_of_a_folder_is_there_before_the_first_image_moves(tmp_path, monkeypatch):
    for name in ("cat/1.png", "dog/2.png"):
        (tmp_path / "pets" / name).parent.mkdir(parents=True)
        (tmp_path / "pets" / name).write_bytes(b"picture")
    rows = [("cat/1.png", "cat", "dog", "0.9", "review")]
    folder = site(tmp_path / "audit", f"folder:path={tmp_path / 'pets'}", rows)
    order: list[str] = []
    replace, rename = os.replace, Path.rename
    monkeypatch.setattr(os, "replace", lambda a, b: (order.append(Path(b).name), replace(a, b))[1])
    monkeypatch.setattr(Path, "rename", lambda a, b: (order.append(Path(b).name), rename(a, b))[1])
    apply_plan(plan_for(folder, 0.5, without_looks=True), Destination(in_place=True))
    assert order == [".fedwinnow-apply.json", "1.png"]
