"""Tables from run folders: cells, winners, ties, gaps, and what has to be said."""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
from collections import Counter

import pytest
from rich.console import Console

from fedwinnow.cli import main
from fedwinnow.errors import DataError, UsageError
from fedwinnow.study import table_writers
from fedwinnow.study.table import Wanted, make_table
from run_folders import write_run, write_runs

CLEAR = {"fedavg": [0.50, 0.52, 0.54], "fedcorr": [0.70, 0.71, 0.74], "sce": [0.55, 0.58, 0.59]}


def table(place, **wanted):
    return make_table([place], Wanted(**({"show": "last10"} | wanted)))


def marks(made, place=0):
    return {row: cell.mark for row, cell in made.columns[place].cells.items()}


def test_a_cell_by_hand(tmp_path):
    made = table(write_runs(tmp_path, CLEAR))
    cell = made.columns[0].cells["fedavg"]
    assert cell.values == {0: 0.50, 1: 0.52, 2: 0.54}
    assert cell.mean == pytest.approx(0.52)
    assert cell.std == pytest.approx(0.02)
    assert "n = 3 seeds" in made.caption
    assert made.rows == ("fedavg", "fedcorr", "sce")
    assert "| FedAvg | 52.00 ± 2.00 | 3.00 |" in str(made)


def test_bold_where_the_test_says_so(tmp_path):
    made = table(write_runs(tmp_path, CLEAR))
    assert marks(made) == {"fedavg": "", "fedcorr": "best", "sce": ""}
    assert "paired t test" in made.caption
    assert "Holm" in made.caption
    assert "**71.67 ± 2.08**" in str(made)
    assert made.ranks == {"fedavg": 3.0, "fedcorr": 1.0, "sce": 2.0}


def test_a_tie_is_marked_and_nothing_is_bold(tmp_path):
    made = table(write_runs(tmp_path, CLEAR | {"sce": [0.72, 0.69, 0.73]}))
    assert marks(made) == {"fedavg": "", "fedcorr": "tied", "sce": "tied"}
    assert "**" not in str(made)


def test_the_corrected_p_decides(tmp_path):
    # Differences to the winner: 1, 2, 3 points gives p = 0.0742; alone it would pass at 0.1, one of three it does not.
    values = {"a": [0.60, 0.60, 0.60], "b": [0.59, 0.58, 0.57], "c": [0.59, 0.57, 0.58], "d": [0.58, 0.59, 0.57]}
    assert marks(table(write_runs(tmp_path / "two", {name: values[name] for name in "ab"}), alpha=0.1))["a"] == "best"
    assert marks(table(write_runs(tmp_path / "four", values), alpha=0.1))["a"] == "tied"


def test_one_seed_refuses_to_bold(tmp_path):
    made = table(write_runs(tmp_path, {"fedavg": [0.1], "fedcorr": [0.9]}))
    assert set(marks(made).values()) == {""}
    assert "nothing is bold" in made.caption
    assert "90.00 |" in str(made)
    assert "±" not in str(made).splitlines()[2]


def test_wilcoxon_says_when_it_cannot_win(tmp_path):
    made = table(write_runs(tmp_path, CLEAR), test="wilcoxon")
    assert marks(made)["fedcorr"] == "tied"
    assert "With 3 seeds this test cannot reach alpha" in made.caption
    six = {"a": [0.5, 0.51, 0.52, 0.53, 0.54, 0.55], "b": [0.6, 0.62, 0.64, 0.66, 0.68, 0.7]}
    assert marks(table(write_runs(tmp_path / "six", six), test="wilcoxon", columns=()))["b"] == "best"


def test_references_are_out_of_competition(tmp_path):
    write_runs(tmp_path, CLEAR)
    write_runs(tmp_path, {"oracle": [0.9, 0.9, 0.9]}, cheats=True)
    write_runs(tmp_path, {"centralised": [0.8, 0.8, 0.8]}, federated=False)
    made = table(tmp_path)
    assert made.rows[-2:] == ("centralised", "oracle")
    assert marks(made)["fedcorr"] == "best"
    assert "oracle" not in made.ranks
    assert "Out of competition" in made.caption


def test_missing_cells_are_visible(tmp_path):
    write_runs(tmp_path, CLEAR, noise="linear")
    write_runs(tmp_path, {"fedavg": [0.3, 0.3]}, noise="constant")
    made = table(tmp_path)
    assert [column.setting for column in made.columns] == ["constant", "linear"]
    line = next(line for line in str(made).splitlines() if line.startswith("| SCE"))
    assert line == "| SCE | – | 57.33 ± 2.08 (n=3) | 2.00 |"
    assert "n = 2 to 3 seeds" in made.caption


def test_unfinished_runs_do_not_count_but_are_named(tmp_path):
    write_runs(tmp_path, CLEAR)
    write_run(tmp_path / "broken", "fedavg", 3, 0.99, status="interrupted")
    made = table(tmp_path)
    assert len(made.columns[0].cells["fedavg"].values) == 3
    assert any("broken (interrupted)" in note for note in made.notes)


def test_other_scenes_are_not_paired(tmp_path):
    write_runs(tmp_path, {"fedavg": [0.1, 0.2, 0.3]})
    write_runs(tmp_path, {"sce": [0.9, 0.9, 0.9]}, hash="another")
    made = table(tmp_path)
    assert set(marks(made).values()) == {""}
    assert any(note.startswith("NOT PAIRED, all runs, seed 0") for note in made.notes)


def test_uneven_rows_are_said(tmp_path):
    write_runs(tmp_path, {"fedavg": [0.1, 0.2, 0.3]})
    write_runs(tmp_path, {"fedgr": [0.9, 0.9, 0.8]}, views="strong")
    made = table(tmp_path)
    assert "CAREFUL, the rows differ in views (none: FedAvg; strong: FedGR)." in made.notes


def test_a_setting_that_neither_row_nor_scene_decides_is_a_column(tmp_path):
    write_runs(tmp_path, CLEAR, rounds=5)
    write_runs(tmp_path, CLEAR, rounds=9)
    assert [column.setting for column in table(tmp_path).columns] == ["rounds=5", "rounds=9"]


def test_what_follows_the_data_is_no_column(tmp_path):
    write_runs(tmp_path, CLEAR, data="cifar10", model="cnn4")
    write_runs(tmp_path, CLEAR, data="digits", model="mlp")
    assert [column.setting for column in table(tmp_path).columns] == ["cifar10", "digits"]


def test_two_runs_for_one_place(tmp_path):
    write_run(tmp_path / "a", "fedavg", 0, 0.5, rounds=5)
    write_run(tmp_path / "b", "fedavg", 0, 0.5, rounds=6)
    with pytest.raises(UsageError, match=r"both have seed 0.*differ in rounds"):
        table(tmp_path, columns=("data",))


def test_lower_is_better_where_it_is(tmp_path):
    for method, values in {"a": [0.5, 0.6, 0.55], "b": [0.8, 0.9, 0.86]}.items():
        for seed, value in enumerate(values):
            folder = write_run(tmp_path / f"{method}{seed}", method, seed, 0.5)
            summary = json.loads((folder / "summary.json").read_text()) | {"memorisation": {"memorised": value}}
            (folder / "summary.json").write_text(json.dumps(summary))
    made = table(tmp_path, show="memorised")
    assert marks(made) == {"a": "best", "b": ""}
    assert made.ranks["a"] == 1


def test_detection_beside_accuracy(tmp_path):
    write_runs(tmp_path, CLEAR, auroc=0.875)
    made = table(tmp_path, show="last10,best,auroc")
    assert [column.shown.path for column in made.columns] == [
        "last10.accuracy",
        "best.accuracy",
        "detection.samples.auroc",
    ]
    assert "0.875 ± 0.000" in str(made)
    assert "chosen by the test part itself" in made.caption


def test_published_numbers_stand_beside_ours(tmp_path):
    published = {("fedcorr", "all runs", "last10"): (90.59, 0.7), ("sce", "all runs", "last10"): (80.1, None)}
    made = table(write_runs(tmp_path, CLEAR), published=published)
    assert "| FedCorr | **71.67 ± 2.08** | 90.59 ± 0.70 | 1.00 |" in str(made)
    assert "| SCE | 57.33 ± 2.08 | 80.10 | 2.00 |" in str(made)
    assert "| FedAvg | 52.00 ± 2.00 | – | 3.00 |" in str(made)


def test_names_in_print_and_in_files(tmp_path):
    write_runs(tmp_path, {"fedavg": [0.5, 0.6], "feddiv:eta=1": [0.4, 0.7]}, noise="constant:rate=0.4")
    write_runs(tmp_path, {"fedavg": [0.6, 0.6], "feddiv:eta=1": [0.5, 0.7]}, noise="constant:rate=0.2")
    made = table(tmp_path, rename={"feddiv:eta=1": "Ours", "last round": "end"}, show="last10,last")
    head, _, first, second = str(made).splitlines()[:4]
    assert head.startswith(
        "|  | symmetric 20 %: last 10 rounds | symmetric 20 %: end | symmetric 40 %: last 10 rounds |"
    )
    assert (first[:9], second[:7]) == ("| FedAvg ", "| Ours ")
    lines = list(csv.DictReader(io.StringIO(table_writers.as_csv(made))))
    assert {line["setting"] for line in lines} == {"constant:rate=0.2", "constant:rate=0.4"}
    assert {line["row"] for line in lines} == {"fedavg", "Ours"}
    assert table_writers.as_value(made)["columns"][0]["words"] == "symmetric 20 %"
    turned = table(tmp_path, order=["FedDiv (eta=1)"])
    assert turned.rows == ("feddiv:eta=1", "fedavg")


def test_latex_with_label_and_caption(tmp_path):
    for noise in ("constant:rate=0.2", "constant:rate=0.4"):
        write_runs(tmp_path, CLEAR, noise=noise)
    text = table_writers.latex(table(tmp_path, show="last10,best", caption="Ours & theirs", label="tab:x"))
    for line in (
        r"\toprule",
        r"\cmidrule(lr){2-3} \cmidrule(lr){4-5}",
        r"\midrule",
        r"\bottomrule",
        r"\caption{Ours \& theirs}",
        r"\label{tab:x}",
    ):
        assert line in text.splitlines()
    assert r"\hline" not in text
    assert any(line.startswith("% Accuracy on the test part") for line in text.splitlines())
    assert r"\label" not in table_writers.latex(table(tmp_path))


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (
            {"rename": {"fedcor": "Ours"}},
            r"unknown row, column or figure for --rename 'fedcor'\. Did you mean 'fedcorr'",
        ),
        ({"rename": {"fedcorr": "SCE"}}, "two rows are called 'SCE'"),
        ({"order": ["fedcor"]}, "unknown row for --order 'fedcor'"),
    ],
)
def test_wrong_names(tmp_path, wanted, message):
    with pytest.raises(UsageError, match=message):
        table(write_runs(tmp_path, CLEAR), **wanted)


def test_csv_and_json_say_the_same(tmp_path):
    made = table(write_runs(tmp_path, CLEAR))
    lines = list(csv.DictReader(io.StringIO(table_writers.as_csv(made))))
    assert lines[1]["row"] == "fedcorr"
    assert (float(lines[1]["mean"]), lines[1]["mark"], lines[1]["n"]) == (pytest.approx(71.666667), "best", "3")
    value = json.loads(table_writers.as_json(made))
    cell = value["columns"][0]["cells"]["fedcorr"]
    assert cell["seeds"] == {"0": 0.70, "1": 0.71, "2": 0.74}
    assert cell["mark"] == "best"
    assert value["columns"][0]["cells"]["sce"]["p"] < 0.05


def test_latex_escapes(tmp_path):
    made = table(write_runs(tmp_path, {"fedavg": [0.1, 0.2], "a_b:x=1": [0.3, 0.5]}, noise="constant:rate=0.5"))
    text = table_writers.latex(made)
    assert r"a\_b:x=1 & 40.00 $\pm$ 14.14 $\approx$" in text
    assert r"(\%)" in text


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_latex_compiles(tmp_path):
    write_runs(tmp_path / "runs", CLEAR, noise="fedcorr:rho=1,tau=0.5")
    write_runs(tmp_path / "runs", {"a_b:x=1": [0.3, 0.5]}, noise="constant:rate=0.5")
    made = table(tmp_path / "runs", show="last10,best,auroc")
    head = r"\documentclass{article}\usepackage{booktabs}\begin{document}"
    page = head + table_writers.latex(made) + r"\end{document}"
    (tmp_path / "page.tex").write_text(page, encoding="utf-8")
    done = subprocess.run(
        ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "page.tex"], cwd=tmp_path, capture_output=True
    )
    assert done.returncode == 0, done.stdout[-2000:]


@pytest.mark.parametrize("width", [40, 80, 130])
def test_no_number_of_a_table_is_cut_in_a_terminal(tmp_path, width):
    for noise in ("constant:rate=0.2", "constant:rate=0.5", "fedcorr:rho=1,tau=0.5"):
        write_runs(tmp_path, CLEAR, noise=noise)
    made = table(tmp_path, show="last10,last,best,validation")
    written = io.StringIO()
    table_writers.for_terminal(made).show(Console(file=written, width=width, force_terminal=True, color_system=None))
    shown = written.getvalue().splitlines()
    assert max(map(len, shown)) <= width
    wanted = Counter(text for row in made.rows for text, _ in table_writers.texts(made, row))
    for text, times in wanted.items():
        assert sum(line.count(text) for line in shown) >= times


# --- the command ---------------------------------------------------------------------------------------------------


def command(*words):
    with pytest.raises(SystemExit) as end:
        main(["table", *map(str, words)])
    return end.value.code


def test_command(tmp_path, capsys):
    write_runs(tmp_path / "runs", CLEAR)
    assert command(tmp_path / "runs", "--format", "markdown") == 0
    assert "|  | last 10 rounds | last round | best round | rank |" in capsys.readouterr().out
    assert command(tmp_path / "runs", "--json", "--show", "auroc") == 0
    assert json.loads(capsys.readouterr().out)["columns"][0]["figure"] == "detection.samples.auroc"
    for suffix in table_writers.SUFFIXES:
        assert command(tmp_path / "runs", "--out", tmp_path / f"table{suffix}", "--quiet") == 0
        assert (tmp_path / f"table{suffix}").stat().st_size > 100


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ([], 2, "no run folder was given"),
        (["absent"], 3, "no such folder"),
        (["empty"], 3, "no run in there"),
        (["runs/fedavg-0/config.toml"], 3, "config.toml: it is a file. Allowed: run folders"),
        (["broken"], 3, "no run is finished: broken (interrupted). Continue one"),
        (["runs", "--show", "lst10"], 2, "unknown figure for --show 'lst10'. Did you mean 'last10'? Allowed: last10"),
        (["runs", "--rows", "metod"], 2, "unknown setting for --rows 'metod'. Did you mean 'method'?"),
        (["runs", "--columns", "nois"], 2, "unknown setting for --columns 'nois'. Did you mean 'noise'?"),
        (["runs", "--rows", ""], 2, "--rows is empty; allowed: the settings"),
        (["runs", "runs/../again"], 2, "same settings: leave one of them out"),
        (["again", "--against", "fedavg"], 2, "no other row to compare it with"),
        (["runs", "--out", "table.doc"], 2, "a file that ends in .md"),
        (["runs", "--alpha", "2"], 2, "above 0 and below 1"),
        (["runs", "--show", "cost.nothing"], 3, "no run has a value for cost.nothing. runs/"),
        (["runs", "--show", "detection.sample.auroc"], 3, "Did you mean 'detection.samples.auroc'?"),
    ],
)
def test_wrong_use(tmp_path, monkeypatch, capsys, words, code, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    write_runs(tmp_path / "runs", CLEAR)
    write_run(tmp_path / "again", "fedavg", 0, 0.5)
    write_run(tmp_path / "broken", "fedavg", 0, 0.5, status="interrupted")
    assert command(*words) == code
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_misspelt_figure_beside_others_is_noted(tmp_path):
    made = table(write_runs(tmp_path, CLEAR), show="last10,seconds,detection.sample.auroc")
    assert "No run has seconds, detection.sample.auroc. Did you mean 'detection.samples.auroc'?" in made.notes


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"score": "acuracy"}, "unknown score 'acuracy'. Did you mean 'accuracy'"),
        ({"test": "u"}, "unknown test 'u'. Allowed: t, wilcoxon"),
        ({"rows": "method"}, r'rows="method" was given; allowed: a list of settings, such as \["method"\]'),
        ({"columns": "noise"}, 'columns="noise" was given'),
    ],
)
def test_wrong_use_from_python(tmp_path, words, message):
    with pytest.raises(UsageError, match=message):
        table(write_runs(tmp_path, CLEAR), **words)


def test_a_broken_summary_is_named(tmp_path):
    folder = write_run(tmp_path / "run", "fedavg", 0, 0.5)
    (folder / "summary.json").write_text("[]")
    with pytest.raises(DataError, match=r"summary\.json"):
        table(tmp_path)


def test_from_python(tmp_path):
    write_runs(tmp_path / "runs", CLEAR)
    import fedwinnow

    made = fedwinnow.table(tmp_path / "runs", show="last10")
    made.save(tmp_path / "table.md")
    assert (tmp_path / "table.md").read_text(encoding="utf-8") == str(made)
    folders = sorted((tmp_path / "runs").iterdir())
    assert str(fedwinnow.table(folders, show="last10")) == str(made)
