"""An audit from beginning to end: what each site gets, what the coordinator sees, how it says what went wrong."""

from __future__ import annotations

import numpy as np
import pytest

import fedwinnow
from auditing_material import QUICK, SPEC, lines, write_patients
from fedwinnow.auditing.audit import SITE_COLUMNS, choices_of, perform, settings_for, with_columns
from fedwinnow.auditing.audit_folder import read_audit
from fedwinnow.auditing.decisions import Decision, save_decision
from fedwinnow.cli import main
from fedwinnow.errors import DataError, FedwinnowWarning, UsageError
from fedwinnow.experiment.play import Execution, Watcher
from fedwinnow.files import folder_names

SITES = ("north", "south", "a---b-east")


def test_every_site_gets_its_own_folder_with_all_its_samples(finished, patients):
    assert {path.name for path in finished.iterdir() if path.is_dir()} == {*SITES, "training"}
    for site in SITES:
        rows = lines(finished / site / "audit.csv")
        assert list(rows[0]) == [
            "site",
            "id",
            "given",
            "suggested",
            "score",
            "p_wrong",
            "decision",
            "other",
            "near_duplicate",
            "outlier",
        ]
        assert len(rows) == 100
        assert len({row["site"] for row in rows}) == 1


def test_the_worst_come_first_and_wrong_labels_are_found(finished, truth):
    for site in SITES:
        rows = lines(finished / site / "audit.csv")
        scores = [float(row["score"]) for row in rows]
        assert scores == sorted(scores, reverse=True)
        wrong = {row["id"] for row in rows if row["given"] != truth[row["id"]]}
        called = {row["id"] for row in rows if row["decision"] == "review"}
        assert len(wrong & called) >= 0.8 * len(wrong)
        assert len(wrong & called) >= 0.8 * len(called)
        assert all(row["suggested"] == truth[row["id"]] for row in rows if row["id"] in wrong & called)


def test_the_coordinator_sees_counts_only(finished, truth):
    rows = lines(finished / "sites.csv")
    assert [list(row) for row in rows] == [list(SITE_COLUMNS)] * 3
    assert {row["said"] for row in rows} == {"calls"}
    assert {row["precision_at_least"] for row in rows} == {""}  # fewer than 20 calls at each site: no percentage
    assert all(0 < int(row["wrong_at_least"]) <= 13 for row in rows)  # 12 % of 100
    seen = (finished / "sites.csv").read_text() + (finished / "audit.json").read_text()
    assert not any(f"{name}," in seen or f'"{name}"' in seen for name in truth)


def test_a_second_audit_does_not_overwrite_the_first(finished, patients):
    settings = settings_for(SPEC.format(path=patients), site="hospital", **QUICK)
    with pytest.raises(UsageError, match="already holds an audit"):
        perform(settings, finished, Execution())


def test_an_interrupted_audit_goes_on(tmp_path, patients, finished):
    class Stop(Watcher):
        def round(self, row):
            if row["round"] == 2:
                raise KeyboardInterrupt

    settings = settings_for(SPEC.format(path=patients), site="hospital", **QUICK)
    with pytest.raises(KeyboardInterrupt):
        perform(settings, tmp_path / "x", Execution(), (Stop(),))
    perform(settings, tmp_path / "x", Execution())
    for site in SITES:
        assert (tmp_path / "x" / site / "audit.csv").read_text() == (finished / site / "audit.csv").read_text()


def test_processes_find_the_same(tmp_path, patients):
    settings = settings_for(SPEC.format(path=patients), site="hospital", **QUICK | {"rounds": 2})
    perform(settings, tmp_path / "serial", Execution())
    perform(settings, tmp_path / "processes", Execution(backend="processes:workers=2"))
    for name in ("sites.csv", *(f"{site}/audit.csv" for site in SITES)):
        assert (tmp_path / "processes" / name).read_text() == (tmp_path / "serial" / name).read_text()


def test_too_few_samples_to_judge_is_an_answer(tmp_path):
    path = write_patients(tmp_path / "few.csv", rows=24)
    settings = settings_for(SPEC.format(path=path), site="hospital", **QUICK)
    outcome = perform(settings, tmp_path / "x", Execution())
    assert {row["decision"] for row in lines(tmp_path / "x" / "north" / "audit.csv")} == {"too few"}
    assert [line["reason"] for line in outcome.counts()] == ["There are too few samples to judge."] * 3
    assert "too few samples to judge" in (tmp_path / "x" / "north" / "report.html").read_text().lower()


def test_the_model_of_a_run_can_judge(tmp_path, patients, capsys):
    run = ["run", "--data", SPEC.format(path=patients) + ",site=hospital", "--partition", "column", "--rounds", "3"]
    for words in (run, ["audit", "--run", str(tmp_path / "run"), "--json"]):
        with pytest.raises(SystemExit) as ended:
            main([*words, "--out", str(tmp_path / words[0])])
        assert ended.value.code == 0
    assert '"judge": "final:prior=false"' in capsys.readouterr().out
    assert len(lines(tmp_path / "audit" / "sites.csv")) == 3


def test_it_says_what_it_does_and_where_to_look_first(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    table = lines(write_patients(tmp_path / "all.csv", wrong=0.0))
    for row in [row for row in table if row["hospital"] == "south"][::5]:
        row["diagnosis"] = next(other["diagnosis"] for other in table if other["diagnosis"] != row["truth"])
    (tmp_path / "clinic.csv").write_text(
        "\n".join([",".join(table[0]), *(",".join(f'"{cell}"' for cell in row.values()) for row in table)])
    )
    words = ["--data", SPEC.format(path="clinic.csv"), "--site", "hospital", "--rounds", "6"]
    with pytest.raises(SystemExit) as ended:
        main(["audit", *words, "--optimizer", "sgd:lr=0.1"])
    said = capsys.readouterr().out
    assert ended.value.code == 0
    assert "then: fedwinnow review audits/clinic/south" in said


def test_a_run_that_was_not_trained_for_an_audit_cannot_give_a_mean(tmp_path, patients):
    fedwinnow.run(data=SPEC.format(path=patients), rounds=1, clients=3, out=tmp_path / "run")
    with pytest.raises(UsageError, match="was not trained for one"):
        fedwinnow.audit(run=tmp_path / "run", judge="mean", out=tmp_path / "x")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "nothing to audit was given"),
        (["--data", "digits"], "--site COLUMN"),
        (["--data", "digits", "--partition", "iid"], "add --clients N"),
        (["--data", "digits", "--clients", "3", "--judge", "men"], "Did you mean 'mean'"),
        (["--data", "digits", "--clients", "3", "--threshold", "2"], "above 0 and at most 1"),
        (["--data", "digits", "--clients", "3", "--expected-false-alarms", "2"], "from 0 to below 1"),
        (
            ["--data", "digits", "--clients", "3", "--expected-false-alarms", "0.2", "--threshold", "0.6"],
            "exclude each",
        ),
        (["--data", "digits", "--run", "x"], "exclude each other"),
        (["--run", "nowhere"], "not a run folder"),
    ],
)
def test_wrong_use_is_explained(words, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["audit", *words])
    assert ended.value.code in (2, 3)
    assert said in capsys.readouterr().err.replace("\n", " ")
    assert list(tmp_path.iterdir()) == []


def test_folder_names_are_harmless_and_differ():
    assert folder_names(["a/b", "a b", "A-b", "../..", "", "training", "x" * 99], ["training"]) == [
        "a-b",
        "a-b-2",
        "A-b-3",
        "site",
        "site-2",
        "training-2",
        "x" * 60,
    ]


def test_the_site_column_goes_into_the_data():
    assert with_columns("a.csv", site="hospital") == {
        "kind": "csv",
        "label": "label",
        "path": "a.csv",
        "site": "hospital",
    }
    assert with_columns("csv:path=a.csv,label=b", site="c", group="d") == {
        "kind": "csv",
        "path": "a.csv",
        "label": "b",
        "site": "c",
        "group": "d",
    }
    assert with_columns("a.csv", site=None, group=None) == "a.csv"
    with pytest.raises(UsageError, match="--group e was given, but the data says group=d"):
        with_columns("csv:path=a.csv,label=b,group=d", group="e")
    with pytest.raises(UsageError, match="Give one of them"):
        with_columns("csv:path=a.csv,label=b,site=c", site="d")


def test_the_self_test_that_is_gone_is_answered_once(patients, tmp_path, capsys):
    words = ["audit", "--data", SPEC.format(path=patients), "--site", "hospital", "--rounds", "1", "--no-self-test"]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--quiet", "--out", str(tmp_path / "x")])
    assert ended.value.code == 0
    assert capsys.readouterr().err.count("no self-test any more") == 1
    with pytest.warns(FedwinnowWarning, match="no self-test any more"):
        assert choices_of(None, None, True) == {}


def test_a_folder_that_is_no_audit_says_what_is_needed(tmp_path):
    from fedwinnow.auditing.audit_folder import read_site

    with pytest.raises(DataError, match=r"no site\.json"):
        read_site(tmp_path)


def test_hospitals_with_a_csv_and_a_folder_of_images_get_corrected_files_back(tmp_path):
    from PIL import Image

    luck = np.random.RandomState(0)
    rows, wrong = ["image,finding,hospital"], set()
    for number in range(120):
        bright = number % 2
        pixels = luck.randint(0, 60, (8, 8)).astype(np.uint8) + np.uint8(150 * bright)
        (tmp_path / "scans").mkdir(exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / "scans" / f"{number}.png")
        if luck.rand() < 0.1:
            wrong.add(number + 1)
        rows.append(f"scans/{number}.png,{('dark', 'bright')[bright ^ ((number + 1) in wrong)]},h{number % 3}")
    table = tmp_path / "findings.csv"
    table.write_text("\n".join(rows) + "\n")
    settings = settings_for(f"csv:path={table},label=finding,image=image", site="hospital", **QUICK)
    perform(settings, tmp_path / "x", Execution())
    assert len(list((tmp_path / "x" / "h0" / "previews").iterdir())) == 40
    for site in ("h0", "h1", "h2"):  # a person looks at the first ten
        for row in lines(tmp_path / "x" / site / "audit.csv")[:10]:
            if int(row["id"]) in wrong:
                other = ({"dark", "bright"} - {row["given"]}).pop()
                decision = Decision.now(row["id"], "anna", "other", other)
                save_decision(tmp_path / "x" / site, row["id"], "anna", decision)
    with pytest.raises(SystemExit) as ended:
        main(["apply", str(tmp_path / "x"), "--out", str(tmp_path / "new.csv")])
    assert ended.value.code == 0
    changed = {n for n, row in enumerate(lines(tmp_path / "new.csv"), 1) if row["finding"] != row["label_given"]}
    assert changed == wrong


def test_groups_are_in_the_files_and_every_report_is_listed(patients, tmp_path, capsys):
    table = tmp_path / "grouped.csv"
    header, *rows = patients.read_text(encoding="utf-8").splitlines()
    grouped = [f"{row},=g{number // 6}" for number, row in enumerate(rows)]  # six rows: two of each of three hospitals
    table.write_text("\n".join([f"{header},person", *grouped]) + "\n", encoding="utf-8")
    out = tmp_path / "x"
    words = ["audit", "--data", SPEC.format(path=table), "--clients", "5", "--group", "person", "--rounds", "1"]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--epochs", "1", "--out", str(out)])
    assert ended.value.code == 0
    text = capsys.readouterr().out.replace("\n", "")
    seen = {}
    for number in range(5):
        folder = out / f"client-{number}"
        assert str(folder / "report.html") in text
        assert "\n=g" not in (folder / "audit.csv").read_text(encoding="utf-8")
        for row in read_audit(folder):
            assert row["group"].startswith("=g")
            assert seen.setdefault(row["group"], number) == number  # a person is at one site
    assert len(seen) == 50
    page = (out / "index.html").read_text(encoding="utf-8")
    assert page.count("/report.html") == 5


def test_without_groups_there_is_no_such_column(finished):
    assert "group" not in (finished / "north" / "audit.csv").read_text(encoding="utf-8").splitlines()[0]
    page = (finished / "index.html").read_text(encoding="utf-8")
    assert 'href="north/report.html"' in page
    assert "<b>east" not in page


def test_many_reports_are_cut_with_a_sentence(capsys, tmp_path):
    from rich.console import Console

    from fedwinnow.auditing.audit import AuditOutcome
    from fedwinnow.commands.audit import show_outcome

    class Many(AuditOutcome):
        def counts(self):
            said = {"said": "calls", "wrong_at_least": 1, "wrong_at_most": None, "reason": ""}
            return [
                {"site": f"s{n}", "folder": f"s{n}", "samples": 9, "judged": 9, "to_review": n, **said}
                for n in range(30)
            ]

    show_outcome(
        Many(tmp_path, [], {"truth": None, "claims": {"said": "cannot tell", "reason": ""}}),
        Console(width=300),
    )
    text = capsys.readouterr().out
    assert text.count("report.html") == 20
    assert "reports of 10 more sites" in text
    assert str(tmp_path / "index.html") in text
