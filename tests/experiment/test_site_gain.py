"""What the federation gives to each site: the runs that are compared, the table, kills, and what is refused."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import fedwinnow
from fedwinnow.cli import main
from fedwinnow.errors import DataError, StaleError, UsageError
from fedwinnow.experiment.gain_table import Gain, SiteGain, compared_in_words, gain_text, read_gain
from fedwinnow.experiment.play import Execution, Watcher
from fedwinnow.experiment.result import Result
from fedwinnow.experiment.run_folder import RunFolder
from fedwinnow.experiment.site_gain import measure_gain
from fedwinnow.testing import comparable, toy_data
from stages import TINY, run

NOISY = {"noise": "constant:rate=0.4", "rounds": 2}
PARTS = ("alone", "together", "left-out")


def site(name="a", rows=100, samples=10, **accuracy):
    figures = {"alone": None, "together": None, "left_out": None, "this_run": None} | accuracy
    return SiteGain(name, samples, 1, samples - 1, rows, figures, figures)


# --- the table, by hand ----------------------------------------------------------------------------------------------


def test_sites_are_counted_one_by_one_and_sites_without_a_figure_are_not():
    gain = Gain(
        "own rows",
        (
            site("a", alone=0.5, together=0.9, this_run=0.5),  # by 0.4: four standard errors of 100 rows and more
            site("b", alone=0.9, together=0.5, this_run=0.9),
            site("c", alone=0.50, together=0.51, this_run=0.6),
            site("d", alone=0.7, together=0.7, this_run=0.7),
            site("e", rows=7),
        ),
    )
    found = gain.compare("together", "alone")
    assert dataclasses.astuple(found) == (2, 1, 1, 1, 1)
    assert gain.mean("alone") == pytest.approx((0.5 + 0.9 + 0.5 + 0.7) / 4)
    assert gain.columns == ("alone", "together", "this_run")
    assert [words for words, _ in compared_in_words(gain)] == [
        "training together instead of alone",
        "this run's method instead of alone",
        "this run's method instead of plain training together",
    ]
    assert gain.compare("together", "alone", "balanced_accuracy").clearly_better is None


def test_the_mean_hides_nothing_only_sites_with_every_figure_are_in_it():
    gain = Gain("own rows", (site("a", alone=0.2, together=0.4), site("b", together=1.0)))
    assert (gain.mean("alone"), gain.mean("together")) == (pytest.approx(0.2), pytest.approx(0.4))


def test_a_difference_is_clear_beyond_two_standard_errors():
    # sqrt((0.5 * 0.5 + 0.6 * 0.4) / rows): 0.07 with 100 rows, 0.0221 with 1,000
    for rows, clear in ((100, 0), (1000, 1)):
        gain = Gain("own rows", (site(rows=rows, alone=0.5, together=0.6),))
        assert gain.compare("together", "alone").clearly_better == clear


def test_the_file_gives_back_what_was_written(tmp_path):
    folder = RunFolder(tmp_path)
    gain = Gain("own rows", (site("with, comma", alone=0.25, together=0.5), site("mean", rows=3)))
    folder.write_text("gain.csv", gain_text(gain))
    assert read_gain(folder) == gain
    assert (tmp_path / "gain.csv").read_text().splitlines()[-1].startswith("mean,,own rows,,,,,0.25,0.5,,")


@pytest.mark.parametrize("text", ["", "row,site\nsite,a\n", None])
def test_a_damaged_table_is_told(tmp_path, text):
    gain = Gain("own rows", (site(alone=0.25),))
    (tmp_path / "gain.csv").write_text(gain_text(gain).replace("0.25", "25") if text is None else text)
    with pytest.raises(DataError, match="repeat fedwinnow gain"):
        read_gain(RunFolder(tmp_path))


# --- a run -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """A run on digits of which two fifths of the labels are wrong, with its gain, from the command line."""
    folder = tmp_path_factory.mktemp("digits") / "run"
    words = "--data digits:train=600 --model linear --clients 5 --partition dirichlet:alpha=0.5 --epochs 2 --rounds 8"
    for line in (f"run {words} --noise constant:rate=0.4 --method fedcorr --out {folder}", f"gain {folder}"):
        with pytest.raises(SystemExit) as end:
            main([*line.split(), "--quiet"])
        assert end.value.code == 0
    return folder


def test_every_site_has_four_figures(digits):
    gain = Result(digits).gain
    assert len(gain.sites) == 5
    assert gain.columns == ("alone", "together", "left_out", "this_run")
    assert sum(one.samples for one in gain.sites) == 480
    for one in gain.sites:
        assert all(0 <= figure <= 1 for figure in one.accuracy.values())
        assert one.trained_on_left == one.samples - one.called_wrong
    own = {row["site"]: row for row in csv.DictReader((digits / "own_test.csv").open())}
    assert all(one.accuracy["this_run"] == float(own[one.site]["accuracy"]) for one in gain.sites)


def test_the_parts_share_the_scene_the_model_the_rounds_and_the_seed(digits):
    mine, hashed = RunFolder(digits).settings(), json.loads((digits / "scene.json").read_text())["hash"]
    for part, method in (("alone", "local"), ("together", "fedavg"), ("left-out", "fedavg")):
        place = RunFolder(digits / "gain" / part)
        other = place.settings()
        assert other.pop("method")["kind"] == method
        different = {key for key in other if other[key] != mine.get(key)}
        assert different <= {"eval_every"}
        assert json.loads((place.path / "scene.json").read_text())["hash"] == hashed


def test_what_was_called_wrong_was_not_trained_on_and_the_rest_was(digits):
    called = int((np.load(digits / "verdicts.npz")["p_wrong"] > 0.5).sum())
    assert 0 < called < 480
    costs = {part: Result(digits / "gain" / part).summary["cost"]["backward_samples"] for part in PARTS}
    visited = [row["participants"] for row in Result(digits / "gain" / "left-out").rounds]
    left = [one.trained_on_left for one in Result(digits).gain.sites]
    assert costs["left-out"] == 2 * sum(left[client] for clients in visited for client in clients)
    assert costs["alone"] == costs["together"]  # as many visits, with the same samples
    assert [row["participants"] for row in Result(digits / "gain" / "alone").rounds] == visited


def test_the_report_says_what_was_compared_and_counts_sites(digits):
    text = " ".join(re.sub(r"<[^>]+>", " ", (digits / "report.html").read_text(encoding="utf-8")).split())
    gain = Result(digits).gain
    found = gain.compare("together", "alone")
    assert "What does the federation give to each site?" in text
    assert "This is one seed." in text
    assert "so the common test part was weighted" in text
    assert f"training together instead of alone {found.better} {found.worse} {found.same}" in text
    assert "mean of 5 sites" in text
    assert all(one.site in text for one in gain.sites)


def test_parts_of_a_gain_are_no_runs_of_a_table(digits, capsys):
    for place in (digits, digits.parent):
        with pytest.raises(SystemExit) as end:
            main(["table", str(place), "--json"])
        assert end.value.code == 0
        assert "local" not in capsys.readouterr().out.lower()
    with pytest.raises(SystemExit):
        main(["table", str(digits / "gain" / "alone")])  # asked for by name
    assert "Local" in capsys.readouterr().out


def test_for_machines(digits, capsys):
    with pytest.raises(SystemExit) as end:
        main(["gain", str(digits), "--json"])
    said = json.loads(capsys.readouterr().out)
    assert end.value.code == 0
    assert len(said["sites"]) == 5
    assert said["compared"]["accuracy"]["training together instead of alone"].keys() >= {"better", "worse", "same"}


def test_a_run_of_fedavg_is_its_own_together(tmp_path):
    run(tmp_path / "run", **NOISY)
    gain = measure_gain(tmp_path / "run", data=toy_data())
    assert all(one.accuracy["this_run"] == one.accuracy["together"] for one in gain.sites)


def test_a_run_of_local_is_its_own_alone(tmp_path):
    run(tmp_path / "run", method="local", participation=0.5, **NOISY)
    gain = measure_gain(tmp_path / "run", data=toy_data())
    assert all(one.accuracy["this_run"] == one.accuracy["alone"] for one in gain.sites)


@pytest.mark.parametrize("method", ["oracle", "centralised", "coteaching"])
def test_other_kinds_of_methods_have_a_gain_and_are_marked(tmp_path, method):
    run(tmp_path / "run", method=method, **NOISY)
    gain = measure_gain(tmp_path / "run", data=toy_data())
    assert len(gain.sites) == 4
    text = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert ("which was told the true labels" in text) == (method == "oracle")
    assert ("which had all samples in one place" in text) == (method == "centralised")


def test_rhfl_keeps_its_public_samples_out_of_the_test_part(tmp_path):
    run(tmp_path / "run", method="rhfl", public=0.4, **NOISY)
    gain = measure_gain(tmp_path / "run", data=toy_data())
    assert len(gain.columns) == 4
    sizes = [np.sum(Result(place).summary["test"]["confusion"]) for place in (tmp_path / "run" / "gain").iterdir()]
    assert sorted(sizes) == [36, 36, 4 * 36]  # 60 test rows without 24; alone: of four models


def verdicts(folder, change):
    """Change the verdicts of a run."""
    with np.load(folder / "verdicts.npz") as stored:
        arrays = dict(stored)
    change(arrays["p_wrong"])
    np.savez_compressed(folder / "verdicts.npz", **arrays)


def test_a_site_of_which_nothing_is_left_is_named(tmp_path):
    result = run(tmp_path / "run", **NOISY)
    mine = result.scene.holdings.of(2)

    def change(p_wrong):
        p_wrong[:] = 0
        p_wrong[mine] = 1

    verdicts(tmp_path / "run", change)
    gain = measure_gain(tmp_path / "run", data=toy_data())
    assert [one.trained_on_left for one in gain.sites] == [30, 30, 0, 30]
    assert gain.sites[2].accuracy["left_out"] is not None
    assert "Nothing to train on was left of client-2" in (tmp_path / "run" / "report.html").read_text("utf-8")


def test_a_class_of_which_nothing_is_left_is_named(tmp_path):
    given = run(tmp_path / "run", **NOISY).scene.given
    verdicts(tmp_path / "run", lambda p_wrong: np.copyto(p_wrong, given == 1))
    measure_gain(tmp_path / "run", data=toy_data())
    text = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "A WHOLE CLASS IS GONE.</strong> Every sample of class 1 was called wrong" in text
    verdicts(tmp_path / "run", lambda p_wrong: p_wrong.fill(0))
    measure_gain(tmp_path / "run", data=toy_data())
    assert "A WHOLE CLASS IS GONE" not in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


def test_where_nothing_is_left_at_all_the_column_is_empty_and_says_so(tmp_path):
    run(tmp_path / "run", **NOISY)
    verdicts(tmp_path / "run", lambda p_wrong: p_wrong.fill(1))
    gain = measure_gain(tmp_path / "run", data=toy_data())
    assert gain.columns == ("alone", "together", "this_run")
    assert "nothing was left to train on" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


def test_without_called_labels_leaving_out_is_training_together(tmp_path):
    run(tmp_path / "run", **NOISY)
    verdicts(tmp_path / "run", lambda p_wrong: p_wrong.fill(np.nan))  # nobody answered: nothing was called wrong
    gain = measure_gain(tmp_path / "run", data=toy_data())
    assert all(one.accuracy["left_out"] == one.accuracy["together"] for one in gain.sites)


def test_other_verdicts_are_noticed_and_played_again(tmp_path):
    run(tmp_path / "run", **NOISY)
    verdicts(tmp_path / "run", lambda p_wrong: p_wrong.fill(0))
    measure_gain(tmp_path / "run", data=toy_data())
    before = {part: (tmp_path / "run" / "gain" / part / "state.safetensors").stat().st_mtime_ns for part in PARTS}
    verdicts(tmp_path / "run", lambda p_wrong: p_wrong.__setitem__(slice(0, 20), 1))
    measure_gain(tmp_path / "run", data=toy_data())
    after = {part: (tmp_path / "run" / "gain" / part / "state.safetensors").stat().st_mtime_ns for part in PARTS}
    assert [part for part in PARTS if before[part] != after[part]] == ["left-out"]


def test_a_run_with_more_rounds_has_another_gain(tmp_path):
    settings = {**TINY, **NOISY, "data": toy_data(), "out": tmp_path / "run"}
    fedwinnow.run(**settings)
    measure_gain(tmp_path / "run", data=toy_data())
    result = fedwinnow.run(**settings | {"rounds": 4, "resume": True})
    with pytest.raises(UsageError, match="not measured yet"):
        _ = result.gain
    assert "is not measured yet" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    measure_gain(tmp_path / "run", data=toy_data())
    assert [len(Result(tmp_path / "run" / "gain" / part).rounds) for part in PARTS] == [4, 4, 4]
    fedwinnow.run(**settings | {"redo": True})  # two rounds again
    measure_gain(tmp_path / "run", data=toy_data())
    assert [len(Result(tmp_path / "run" / "gain" / part).rounds) for part in PARTS] == [2, 2, 2]


def test_a_run_of_an_older_version_is_measured_now(tmp_path):
    run(tmp_path / "run", method="coteaching", **NOISY)
    written = (tmp_path / "run" / "own_test.csv").read_bytes()
    (tmp_path / "run" / "own_test.csv").unlink()
    measure_gain(tmp_path / "run", data=toy_data())
    assert (tmp_path / "run" / "own_test.csv").read_bytes() == written


# --- kill and repeat -------------------------------------------------------------------------------------------------


def whole(folder: Path):
    """Everything that must not depend on kills."""
    parts = {part: comparable(folder / "gain" / part) for part in PARTS}
    return parts, (folder / "gain.csv").read_bytes(), (folder / "report.html").read_bytes()


@pytest.mark.parametrize(("part", "number"), [("alone", 1), ("together", 2), ("left_out", 1)])
def test_an_interrupted_gain_goes_on(tmp_path, part, number):
    class Interrupt(BaseException):
        pass

    class Stop(Watcher):
        def round(self, row):
            if row["round"] == number:
                raise Interrupt

    @contextmanager
    def stopping(name):
        yield (Stop(),) if name == part else ()

    run(tmp_path / "run", **NOISY | {"rounds": 3})
    shutil.copytree(tmp_path / "run", tmp_path / "same" / "run")
    measure_gain(tmp_path / "run", data=toy_data())
    with pytest.raises(Interrupt):
        measure_gain(tmp_path / "same" / "run", watching=stopping, data=toy_data())
    assert not (tmp_path / "same" / "run" / "gain.csv").exists()
    measure_gain(tmp_path / "same" / "run", data=toy_data())
    assert whole(tmp_path / "same" / "run") == whole(tmp_path / "run")


KILLED = """
import os, shutil, signal, sys
from pathlib import Path
import torch
import fedwinnow.experiment.play
from fedwinnow.experiment.site_gain import measure_gain
from fedwinnow.testing import toy_data

torch.set_num_threads(1)  # threads do not survive a fork
fedwinnow.experiment.play.APART = 0.0
home = Path(sys.argv[1])


def die_at(call):
    replace, calls = os.replace, iter(range(10**9))

    def replacing(source, target):
        if next(calls) == call:
            os.kill(os.getpid(), signal.SIGKILL)
        replace(source, target)

    os.replace = replacing


def child(folder, call=None):
    number = os.fork()
    if number == 0:
        if call is not None:
            die_at(call)
        measure_gain(folder, data=toy_data())
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])


measure_gain(home / "whole" / "run", data=toy_data())  # here, so that the children need not import anything
for call in map(int, sys.argv[2:]):
    shutil.copytree(home / "fresh" / "run", home / str(call) / "run")
    assert child(home / str(call) / "run", call) == -signal.SIGKILL, call
    assert child(home / str(call) / "run") == 0, call
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")
def test_a_killed_gain_goes_on(tmp_path):
    run(tmp_path / "fresh" / "run", **NOISY)
    shutil.copytree(tmp_path / "fresh", tmp_path / "whole")
    calls = ["7", "30", "55"]  # the so-manieth file that is put in its place
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), *calls], check=True, timeout=120)
    for call in calls:
        assert whole(tmp_path / call / "run") == whole(tmp_path / "whole" / "run"), call


# --- what is refused -------------------------------------------------------------------------------------------------


def refused(words, capsys):
    """The exit code and the message of a command."""
    with pytest.raises(SystemExit) as end:
        main(["gain", *words])
    return end.value.code, capsys.readouterr().err


def test_a_folder_is_needed(tmp_path, capsys):
    assert refused([], capsys) == (
        2,
        "error: no run folder was given; allowed: one, for example runs/fedavg-digits-0.\n",
    )
    code, said = refused([str(tmp_path / "none")], capsys)
    assert code == 3
    assert "not a run folder" in said


def test_a_run_that_is_not_finished(tmp_path, capsys):
    class Stop(Watcher):
        def round(self, row):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedwinnow.run(data=toy_data(), out=tmp_path, watchers=(Stop(),), **TINY)
    code, said = refused([str(tmp_path)], capsys)
    assert code == 2
    assert "this run is not finished (interrupted)" in said


def test_a_run_over_a_network(tmp_path, capsys):
    run(tmp_path, **NOISY)
    environment = json.loads((tmp_path / "environment.json").read_text())
    (tmp_path / "environment.json").write_text(json.dumps(environment | {"backend": "flower"}))
    code, said = refused([str(tmp_path)], capsys)
    assert code == 2
    assert "this run went over a network" in said
    assert said.count("\n") == 1


def test_data_in_memory(tmp_path, capsys):
    run(tmp_path, **NOISY)
    code, said = refused([str(tmp_path)], capsys)
    assert code == 3
    assert "cannot be loaded again" in said
    with pytest.raises(DataError, match="other data"):
        measure_gain(tmp_path, data=toy_data(samples=150))


def table(path, shift=0):
    lines = [f"{row % 7 + shift},{row % 5},{'ill' if row % 2 else 'well'}\n" for row in range(150)]
    path.write_text("age,dose,outcome\n" + "".join(lines))


def test_data_that_has_gone_or_changed(tmp_path, capsys):
    table(tmp_path / "t.csv")
    run(tmp_path / "run", data=f"csv:path={tmp_path / 't.csv'},label=outcome", **NOISY)
    table(tmp_path / "t.csv", shift=1)
    code, said = refused([str(tmp_path / "run")], capsys)
    assert code in (2, 3)
    assert "has changed" in said or "have changed" in said
    (tmp_path / "t.csv").unlink()
    code, said = refused([str(tmp_path / "run")], capsys)
    assert code in (2, 3)
    assert "t.csv" in said
    assert not (tmp_path / "run" / "gain").exists()


def test_a_model_whose_code_has_changed(tmp_path):
    source = "import torch\ndef build():\n    return torch.nn.Linear(2, 3)\n"
    (tmp_path / "model.py").write_text(source)
    run(tmp_path / "run", model=f"{tmp_path / 'model.py'}:build", **NOISY)
    measure_gain(tmp_path / "run", data=toy_data())
    (tmp_path / "model.py").write_text(source.replace("return", "return torch.nn.Sequential(torch.nn.Tanh(),") + ")")
    with pytest.raises((StaleError, UsageError)):
        measure_gain(tmp_path / "run", data=toy_data())


def test_models_of_different_kinds(tmp_path):
    run(tmp_path, method="local", model="mlp+linear", **NOISY)
    with pytest.raises(UsageError, match="models of different kinds"):
        measure_gain(tmp_path, data=toy_data())


def test_no_test_part(tmp_path):
    data = dataclasses.replace(toy_data(), test=None)
    run(tmp_path, data=data, test=0, **NOISY)
    with pytest.raises(DataError, match="no test part"):
        measure_gain(tmp_path, data=data)


@pytest.mark.parametrize("damage", ["missing", "short", "text"])
def test_damaged_verdicts(tmp_path, damage):
    run(tmp_path, **NOISY)
    path = tmp_path / "verdicts.npz"
    if damage == "missing":
        path.unlink()
    elif damage == "short":
        np.savez_compressed(path, p_wrong=np.zeros(3))
    else:
        path.write_text("nothing")
    with pytest.raises(DataError, match=r"verdicts\.npz"):
        measure_gain(tmp_path, data=toy_data())


def test_damaged_own_test(tmp_path):
    run(tmp_path, **NOISY)
    (tmp_path / "own_test.csv").write_text("site,part\na,b\n")
    with pytest.raises(DataError, match=r"own_test\.csv"):
        measure_gain(tmp_path, data=toy_data())


def test_a_folder_in_use(tmp_path):
    run(tmp_path, **NOISY)
    with RunFolder(tmp_path).locked(), pytest.raises(UsageError, match="another process"):
        measure_gain(tmp_path, Execution(), data=toy_data())


def test_a_run_that_began_with_a_trained_model(tmp_path):
    run(tmp_path / "first", **NOISY)
    run(tmp_path / "second", start=tmp_path / "first", **NOISY)
    with pytest.raises(UsageError, match="began with the trained model"):
        measure_gain(tmp_path / "second", data=toy_data())
