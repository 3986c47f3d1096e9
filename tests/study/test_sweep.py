"""Sweeps: paired runs, skipping, resuming, failing, and engines that lose a worker midway."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import pytest
from safetensors.torch import load_file

import fedwinnow
from fedwinnow.cli import main, parse
from fedwinnow.commands.sweep import Sweep
from fedwinnow.errors import DataError, RunError, UsageError
from fedwinnow.experiment.play import Execution
from fedwinnow.experiment.run_folder import RunFolder
from fedwinnow.study import engine as engines
from fedwinnow.study import sweep, sweep_plan
from fedwinnow.study.engine import Engine, make_engine
from fedwinnow.study.sweep import Clock, Outcome, Work, run_plan
from fedwinnow.study.sweep_plan import Job, make_plan, variants
from fedwinnow.testing import comparable

STUMBLING = Path(__file__).parent / "material" / "stumbling.py"
SMALL = {"data": "digits:train=80", "model": "linear", "clients": 3, "rounds": 3, "epochs": 1}
needs_kill = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs SIGKILL")


def flags(settings):
    return [word for key, value in settings.items() for word in (f"--{key.replace('_', '-')}", str(value))]


def command(*words):
    with pytest.raises(SystemExit) as end:
        main(["sweep", *map(str, words)])
    return end.value.code


def summaries(out):
    return {path.parent.relative_to(out): json.loads(path.read_text()) for path in sorted(out.rglob("summary.json"))}


# --- the plan ------------------------------------------------------------------------------------------------------


def test_methods_times_scenes_times_seeds():
    rows = variants(["fedavg", {"method": "sce", "epochs": 2, "name": "SCE"}], "method", "method")
    scenes = variants([{"noise": "constant:rate=0.5"}, {"name": "clean", "epochs": 7}], "scene", "scene")
    plan = make_plan(Path("out"), rows, scenes, [3, 4], {"epochs": 1, "rounds": 9})
    assert len(plan.jobs) == 8
    assert len({job.folder for job in plan.jobs}) == 8
    chosen = {(job.row, job.scene): job.settings for job in plan.jobs if job.seed == 4}
    assert chosen["fedavg", "clean"] == {"epochs": 7, "rounds": 9, "method": "fedavg", "seed": 4}
    assert chosen["SCE", "clean"] == {"epochs": 2, "rounds": 9, "method": "sce", "seed": 4}  # the row wins
    assert chosen["fedavg", "constant:rate=0.5"]["noise"] == "constant:rate=0.5"


def test_names_that_a_path_cannot_have_stay_apart():
    first, second = variants(["fedrn:alpha=0.1,k/2", "fedrn:alpha=0.1 k:2"], "method", "method")
    assert first.folder != second.folder
    assert not set(first.folder) & set("/:, ")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": ["fedavg", "fedavg"]}, "the method 'fedavg' twice"),
        ({"seeds": []}, "no seed"),
        ({"scenes": [{"nois": "none"}]}, "unknown setting 'nois'. Did you mean 'noise'"),
        ({"rows": [3]}, "3 was given as a method"),
    ],
)
def test_plans_that_are_refused(changes, message):
    given = {"rows": ["fedavg"], "scenes": [{"noise": "none"}], "seeds": [0]} | changes
    with pytest.raises(UsageError, match=message):
        make_plan(
            Path("out"),
            variants(given["rows"], "method", "method"),
            variants(given["scenes"], "scene", "scene"),
            given["seeds"],
            {},
        )


def test_a_file_describes_a_sweep_and_flags_win(tmp_path):
    (tmp_path / "study.toml").write_text(
        'methods = ["fedavg"]\nseeds = [1, 2]\nrounds = 9\nout = "here"\n'
        '[[rows]]\nname = "strong"\nmethod = "sce"\nviews = "flip"\n'
        '[[scenes]]\nname = "half"\npartition = "iid"\n[scenes.noise]\nkind = "constant"\nrate = 0.5\n'
    )
    made = parse(Sweep, "sweep", [str(tmp_path / "study.toml"), "--rounds", "4"]).make_plan()
    assert made.out == Path("here").absolute()
    assert {(job.row, job.scene, job.seed) for job in made.jobs} == {
        (row, "half", seed) for row in ("fedavg", "strong") for seed in (1, 2)
    }
    assert made.jobs[0].settings["rounds"] == 4
    assert made.jobs[1].settings["views"] == "flip"
    assert made.jobs[0].settings["noise"] == {"kind": "constant", "rate": 0.5}
    (tmp_path / "study.toml").write_text('method = "sce"\n')  # as a file for `run` has it
    assert {job.row for job in parse(Sweep, "sweep", [str(tmp_path / "study.toml")]).make_plan().jobs} == {"sce"}
    (tmp_path / "study.toml").write_text('methods = "fedavg"\n')
    with pytest.raises(UsageError, match="methods must be a list of values"):
        parse(Sweep, "sweep", [str(tmp_path / "study.toml")])


# --- running -------------------------------------------------------------------------------------------------------


def test_rows_are_paired(tmp_path):
    swept = fedwinnow.sweep(["fedavg", "sce"], seeds=2, out=tmp_path, **SMALL | {"rounds": 0})
    states = {(one.job.row, one.job.seed): load_file(one.job.folder / "state.safetensors") for one in swept.outcomes}
    for name, weights in states["fedavg", 0].items():
        assert weights.equal(states["sce", 0][name])
    assert not all(weights.equal(states["fedavg", 1][name]) for name, weights in states["fedavg", 0].items())
    hashes = {one.job.seed: set() for one in swept.outcomes}
    for one in swept.outcomes:
        hashes[one.job.seed].add(json.loads((one.job.folder / "summary.json").read_text())["scene"]["hash"])
    assert [len(found) for found in hashes.values()] == [1, 1]


def test_a_failing_run_is_told_at_the_end_and_resumed_next_time(tmp_path, capsys):
    stumbling = f"{STUMBLING}:mark={tmp_path / 'mark'}"
    words = [*flags(SMALL), "--methods", stumbling, "fedavg", "--seeds", "0", "--out", tmp_path / "out"]
    assert command(*words) == 4
    printed = capsys.readouterr()
    assert "1 finished, 0 were finished before, 1 failed" in printed.out
    assert "a slip of the pen" in printed.err
    states = {summary["method"].partition(":")[0]: summary for summary in summaries(tmp_path / "out").values()}
    assert states["fedavg"]["status"] == "finished"
    assert command(*words) == 0
    assert "1 finished, 1 were finished before, 0 failed" in capsys.readouterr().out
    assert all(summary["status"] == "finished" for summary in summaries(tmp_path / "out").values())


def test_the_story_of_a_failure_goes_when_the_run_is_finished(tmp_path, monkeypatch):
    rows, scenes = variants(["fedavg"], "method", "method"), variants([{"name": "one"}], "scene", "scene")
    (job,) = make_plan(tmp_path, rows, scenes, [0], SMALL | {"rounds": 0}).jobs
    work = Work(Execution(resume=True))
    with monkeypatch.context() as patch:
        patch.setattr("fedwinnow.study.sweep.play", lambda *_: 1 / 0)
        assert work(job)[0] == "failed"
    assert "ZeroDivisionError" in (job.folder / "error.txt").read_text()
    assert work(job)[0] == "finished"
    assert not (job.folder / "error.txt").exists()


def test_an_interrupted_sweep_continues(tmp_path, capsys):
    stumbling = f"{STUMBLING}:how=interrupt,mark={tmp_path / 'mark'}"
    words = [*flags(SMALL), "--methods", "fedavg", stumbling, "--seeds", "0", "--out", tmp_path / "out"]
    assert command(*words) == 130
    assert "the same command continues" in capsys.readouterr().out
    assert command(*words) == 0
    printed = capsys.readouterr().out
    assert "1 finished, 1 to continue, 0 new" in printed
    assert "1 finished, 1 were finished before" in printed


def test_the_plan_is_only_told(tmp_path, capsys):
    words = [*flags(SMALL), "--noises", "constant:rate=0.2", "constant:rate=0.4", "--out", tmp_path / "out"]
    assert command(*words, "--plan") == 0
    printed = capsys.readouterr().out
    assert "6 runs: 1 methods x 2 scenes x 3 seeds" in printed
    assert "this will take" in printed
    assert not (tmp_path / "out").exists()


def test_other_settings_need_another_folder(tmp_path, capsys):
    words = ["--methods", "fedavg", "--seeds", "0", "--out", tmp_path]
    assert command(*flags(SMALL), *words) == 0
    assert command(*flags(SMALL | {"epochs": 2}), *words) == 2
    assert "epochs (1 there, 2 now)" in capsys.readouterr().err
    assert command(*flags(SMALL | {"rounds": 4}), *words) == 0
    assert [summary["rounds"] for summary in summaries(tmp_path).values()] == [4]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--methods", "fedavgg"], "Did you mean 'fedavg'"),
        (["--noises", "constnt:rate=1"], "Did you mean 'constant'"),
        (["--engine", "lokyy"], "unknown engine 'lokyy'. Did you mean 'loky'"),
        (["--engine", "dask:adress=x"], "Did you mean 'address'"),
        (
            ["--engine", "dask:address=tcp://h:1", "--jobs", "2"],
            "--jobs 2 was given with --engine dask:address=tcp://h:1",
        ),
        (["--jobs", "0"], "--jobs 0 was given"),
        (["--rounds", "-1"], "--rounds -1"),
    ],
)
def test_wrong_use_is_found_before_anything_runs(tmp_path, capsys, words, message):
    assert command(*flags(SMALL), "--out", tmp_path / "out", *words) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_broken_book_is_named(tmp_path):
    (tmp_path / "sweep.json").write_text("{")
    with pytest.raises(DataError, match=r"sweep\.json"):
        fedwinnow.sweep(out=tmp_path, **SMALL)


def test_time_left_by_hand():
    jobs = [Job(row, scene, 0, Path(row + scene), {}) for row in "ab" for scene in "xy"]
    clock = Clock(jobs, 2)
    assert clock.seconds_left() is None
    clock.note(Outcome(jobs[0], "finished", 10.0))  # ax
    assert clock.seconds_left() == 30 / 2
    clock.note(Outcome(jobs[2], "finished", 40.0))  # bx: now ay is expected to take 10, by 40
    assert clock.seconds_left() == 50 / 2
    clock.note(Outcome(jobs[3], "failed", 1.0))
    assert clock.seconds_left() == 10
    assert clock.done == 3


# --- engines -------------------------------------------------------------------------------------------------------


def engine_study(tmp_path, out, how, **options):
    stumbling = f"{STUMBLING}:how={how},mark={tmp_path / 'mark'}"
    return fedwinnow.sweep([stumbling, "fedavg"], seeds=2, out=tmp_path / out, **options, **SMALL)


@needs_kill
def test_processes_give_the_same_results_and_survive_a_killed_one(tmp_path):
    swept = engine_study(tmp_path, "killed", "kill", jobs=2)
    assert (tmp_path / "mark.stumbled").exists()
    assert [one.status for one in swept.outcomes] == ["finished"] * 4
    engine_study(tmp_path, "serial", "kill", jobs=1)  # the mark is there, so nothing goes wrong
    assert_same_runs(tmp_path / "killed", tmp_path / "serial")


@needs_kill
def test_a_dask_cluster_loses_a_worker_midway(tmp_path):
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        swept = engine_study(tmp_path, "dask", "kill", engine=f"dask:address={cluster.scheduler_address}")
    assert (tmp_path / "mark.stumbled").exists()
    assert [one.status for one in swept.outcomes] == ["finished"] * 4
    engine_study(tmp_path, "serial", "kill")
    assert_same_runs(tmp_path / "dask", tmp_path / "serial")


@pytest.mark.parametrize(
    ("engine", "jobs", "words"),
    [
        ("loky", 2, "2 at a time"),
        ("dask", 2, "2 at a time"),
        ("dask:address=tcp://h:1", 1, "as many at a time as there are workers"),
        ("ray:address=auto", 1, "as many at a time as there are workers"),
    ],
)
def test_how_many_runs_go_at_a_time(engine, jobs, words):
    assert make_engine(engine, jobs).pace == words


@pytest.mark.parametrize(
    ("seconds", "jobs", "left", "expected"),
    [(15.0, "auto", 4, 1), (90.0, "auto", 4, 4), (90.0, "auto", 3, 3), (90.0, "auto", 1, 1), (15.0, 2, 4, 2)],
)
def test_short_sweeps_start_no_processes(monkeypatch, seconds, jobs, left, expected):
    monkeypatch.setattr(sweep, "to_play", lambda plan, redo: [None] * left)
    monkeypatch.setattr(sweep, "estimated_seconds", lambda plan, engine, device, redo: seconds / engine.jobs)
    asked = Engine("loky", {}, 4 if jobs == "auto" else jobs)
    engine, told = sweep.settled(None, asked, jobs, None)
    assert engine.jobs == expected
    assert told == (seconds / expected if jobs == "auto" and left > 1 else None)


def test_a_short_sweep_says_that_it_goes_one_at_a_time(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(engines, "usable_cores", lambda: 4)
    flags = ["--data", "digits:train=60", "--rounds", "1", "--clients", "2", "--seeds", "0", "1", "--plan"]
    with pytest.raises(SystemExit, match="0"):
        main(["sweep", *flags, "--jobs", "auto", "--out", str(tmp_path)])
    assert "1 at a time" in capsys.readouterr().out


@needs_kill
def test_ray_loses_a_worker_midway(tmp_path):
    pytest.importorskip("ray", reason="the extra 'ray' is not installed: pip install '.[ray]'")
    swept = engine_study(tmp_path, "ray", "kill", engine="ray", jobs=2)
    assert (tmp_path / "mark.stumbled").exists()
    assert [one.status for one in swept.outcomes] == ["finished"] * 4
    engine_study(tmp_path, "serial", "kill")
    assert_same_runs(tmp_path / "ray", tmp_path / "serial")


def test_a_ray_cluster_that_does_not_answer(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", types.ModuleType("ray"))  # nobody gets so far as to use it
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(UsageError, match=rf"ray:address=127.0.0.1:{port}: no cluster answers there"):
        list(make_engine(f"ray:address=127.0.0.1:{port}", 1).map(str, [1]))


def test_a_scheduler_that_does_not_answer(monkeypatch):
    distributed = pytest.importorskip("distributed")

    def refuse(*_, **__):
        raise OSError("timed out")

    monkeypatch.setattr(distributed, "Client", refuse)
    with pytest.raises(UsageError, match="no scheduler answers there"):
        list(make_engine("dask:address=tcp://127.0.0.1:1", 1).map(str, [1]))


def assert_same_runs(first, second):
    folders = [path.parent.relative_to(first) for path in first.rglob("summary.json")]
    assert len(folders) == 4
    for folder in folders:
        assert comparable(first / folder) == comparable(second / folder)


def test_a_table_of_a_sweep_uses_its_names_and_order(tmp_path):
    """Two rows may have one method, and a scene's name says more than its settings."""
    rows = [{"method": "fedavg", "name": "slow", "optimizer": "sgd:lr=0.001"}, {"method": "fedavg", "name": "fast"}]
    scenes = [{"name": "light", "noise": "constant:rate=0.1"}, {"name": "heavy", "noise": "constant:rate=0.6"}]
    fedwinnow.sweep(rows, scenes=scenes, seeds=1, out=tmp_path, **SMALL | {"rounds": 0})
    made = fedwinnow.table(tmp_path, show="last")
    assert made.rows == ("slow", "fast")
    assert [column.setting for column in made.columns] == ["light", "heavy"]
    assert any("light: constant:rate=0.1; heavy: constant:rate=0.6" in note for note in made.notes)
    assert any("CAREFUL, the rows differ in optimizer" in note for note in made.notes)
    by_settings = fedwinnow.table(tmp_path, show="last", rows=["optimizer"], columns=["noise"])
    assert [column.setting for column in by_settings.columns] == ["constant:rate=0.6", "constant:rate=0.1"]


def test_two_sweeps_in_one_table_keep_their_names(tmp_path):
    for scene, rate in (("light", 0.1), ("heavy", 0.6)):
        scenes = [{"name": scene, "noise": f"constant:rate={rate}"}]
        fedwinnow.sweep(["fedavg"], scenes=scenes, seeds=1, out=tmp_path / scene, **SMALL | {"rounds": 0})
    both = fedwinnow.table(tmp_path / "light", tmp_path / "heavy", show="last")
    assert [column.setting for column in both.columns] == ["light", "heavy"]
    # The same names for other runs would hide one of them, so then the settings speak.
    scenes = [{"name": "light", "noise": "constant:rate=0.3"}]
    fedwinnow.sweep(["fedavg"], scenes=scenes, seeds=1, out=tmp_path / "again", **SMALL | {"rounds": 0})
    clash = fedwinnow.table(tmp_path / "light", tmp_path / "again", show="last")
    assert {column.setting for column in clash.columns} == {"constant:rate=0.1", "constant:rate=0.3"}


# --- runs that were made of something else -------------------------------------------------------------------------

OWN = """
from dataclasses import dataclass
from typing import ClassVar
from fedwinnow import Method


@dataclass(frozen=True)
class Own(Method):
    name: ClassVar[str] = "own"

    def choose(self, server):
        return sorted(server.available)[:1]
"""


def participants(folder):
    return {tuple(json.loads(line)["participants"]) for line in (folder / "rounds.jsonl").read_text().splitlines()}


def test_a_sweep_tells_stale_runs_apart_and_redoes_them_when_asked(tmp_path, capsys):
    method, out = tmp_path / "own.py", tmp_path / "sweep"
    method.write_text(OWN)
    words = ["--methods", "fedavg", method, "--seeds", "0", "--out", out, *flags(SMALL)]
    assert command(*words) == 0
    before = summaries(out)
    own = next(path.parent for path in out.rglob("summary.json") if "own" in str(path))
    assert participants(own) == {(0,)}
    method.write_text(OWN.replace("[:1]", "[-1:]"))
    capsys.readouterr()

    assert command(*words) == 4  # nothing was played, and it does not look like success
    said = capsys.readouterr()
    assert "2 runs: 2 methods x 1 scenes x 1 seeds; 1 finished, 0 to continue, 0 new, 1 stale" in " ".join(
        said.out.split()
    )
    assert "0 finished, 1 were finished before, 0 failed, 1 stale" in said.out
    assert (
        "1 of 2 runs are stale and were not played: own.py has changed since this run was made. Add --redo stale"
        in (said.err)
    )
    assert summaries(out) == before
    assert command(*words, "--json") == 4
    told = {one["row"]: (one["status"], one["message"]) for one in json.loads(capsys.readouterr().out)}
    assert told["fedavg"] == ("skipped", None)
    assert told[str(method)] == ("stale", "own.py has changed since this run was made")
    assert command(*words, "--plan", "--json") == 0
    assert sorted(one["state"] for one in json.loads(capsys.readouterr().out)) == ["finished", "stale"]

    played = (out / next(iter(before)) / "summary.json").stat().st_mtime_ns
    assert command(*words, "--redo", "stale") == 0
    said = capsys.readouterr()
    assert "1 finished, 1 were finished before, 0 failed" in said.out
    assert participants(own) == {(2,)}
    assert (out / next(iter(before)) / "summary.json").stat().st_mtime_ns == played
    assert command(*words) == 0
    assert "0 finished, 2 were finished before" in capsys.readouterr().out


def test_redo_alone_redoes_all(tmp_path, capsys):
    words = ["--methods", "fedavg", "--seeds", "0", "1", "--out", tmp_path, *flags(SMALL)]
    assert command(*words) == 0
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("summary.json")}
    capsys.readouterr()
    assert command("--redo", *words) == 0  # the word after it is another flag, not its value
    assert "all are started again" in " ".join(capsys.readouterr().out.split())
    assert all(path.stat().st_mtime_ns > time for path, time in times.items())


def test_changed_data_makes_the_runs_of_a_sweep_stale(tmp_path, monkeypatch):
    table = tmp_path / "t.csv"

    def write(first):
        rows = [f"{number % 7 if number else first},{'ab'[number % 2]}" for number in range(40)]
        table.write_text("\n".join(["age,label", *rows]) + "\n")

    settings = {**SMALL, "data": str(table), "out": tmp_path / "sweep", "seeds": 2}
    write(1)
    fedwinnow.sweep(["fedavg"], **settings)
    write(2)
    stale = fedwinnow.sweep(["fedavg"], **settings)
    assert [outcome.message for outcome in stale.stale] == [
        "the values of t.csv have changed since this run was made"
    ] * 2
    redone = fedwinnow.sweep(["fedavg"], redo="stale", **settings)
    assert [outcome.status for outcome in redone.outcomes] == ["finished"] * 2
    table.unlink()  # what is finished needs its data no more
    assert [outcome.status for outcome in fedwinnow.sweep(["fedavg"], **settings).outcomes] == ["skipped"] * 2


def test_finished_runs_of_another_source_stay_and_broken_ones_are_stale(tmp_path, monkeypatch):
    from fedwinnow import files

    settings = {**SMALL, "out": tmp_path, "seeds": 2}
    done = fedwinnow.sweep(["fedavg"], **settings)
    broken = done.outcomes[1].job.folder
    summary = json.loads((broken / "summary.json").read_text())
    (broken / "summary.json").write_text(json.dumps(summary | {"status": "interrupted"}))
    monkeypatch.setattr(files, "package_source", lambda: "0" * 64)
    again = fedwinnow.sweep(["fedavg"], **settings)
    assert [outcome.status for outcome in again.outcomes] == ["skipped", "stale"]
    assert "not finished" in again.stale[0].message
    assert "1 of 1 runs were made by another version of the source" in str(again.table())


def test_a_run_from_the_command_line_is_redone(tmp_path, capsys):
    words = ["run", "--out", str(tmp_path), *map(str, flags(SMALL))]

    def code(*more):
        with pytest.raises(SystemExit) as end:
            main([*words, *more])
        return end.value.code

    assert code() == 0
    assert code() == 2
    identity = json.loads((tmp_path / "identity.json").read_text())
    identity["data"]["samples"]["hash"] = "other"
    (tmp_path / "identity.json").write_text(json.dumps(identity))
    capsys.readouterr()
    assert code("--resume") == 2
    assert "the values of digits have changed since this run was made. Add --redo" in capsys.readouterr().err
    assert code("--redo", "stale") == 0
    assert code("--redo") == 0
    assert code("--redo", "some") == 2


# --- several processes, one sweep ----------------------------------------------------------------------------------


def test_a_run_that_another_process_holds_is_taken_and_not_failed(tmp_path, capsys):
    words = [*flags(SMALL), "--methods", "fedavg", "sce", "--seeds", "0", "--out", tmp_path / "out"]
    plan = parse(Sweep, "sweep", list(map(str, words))).make_plan()
    with RunFolder(plan.jobs[0].folder).locked():
        assert command(*words) == 0
    printed = capsys.readouterr().out
    assert "1 finished, 0 were finished before, 0 failed, 1 taken by other processes" in printed
    assert "fedavg | iid, no noise | seed 0: taken by another process" in printed
    assert command(*words) == 0
    assert "1 finished, 1 were finished before, 0 failed;" in capsys.readouterr().out


def test_a_run_that_another_process_has_finished_meanwhile_is_skipped(tmp_path):
    words = [*flags(SMALL), "--methods", "fedavg", "--seeds", "0", "--out", tmp_path / "out"]
    (job,) = parse(Sweep, "sweep", list(map(str, words))).make_plan().jobs
    assert command(*words) == 0
    before = (job.folder / "summary.json").stat().st_mtime_ns
    assert Work(Execution(resume=True))(job)[0] == "skipped"
    assert (job.folder / "summary.json").stat().st_mtime_ns == before
    with RunFolder(job.folder).locked():
        assert Work(Execution(resume=True, redo="all"))(job)[0] == "taken"


def test_all_taken_is_no_table(tmp_path):
    plan = make_plan(
        tmp_path, variants(["fedavg"], "method", "m"), variants([{"name": "x"}], "scene", "s"), [0], dict(SMALL)
    )
    with RunFolder(plan.jobs[0].folder).locked():
        swept = run_plan(plan, make_engine("loky", 1), Work(Execution(resume=True)))
    assert [one.job for one in swept.taken] == list(plan.jobs)
    with pytest.raises(RunError, match="failed, are stale or taken"):
        swept.table()


def test_two_sweeps_into_one_folder_lose_none_of_the_others_lines(tmp_path, monkeypatch):
    one, other = (
        make_plan(tmp_path, variants([name], "method", "m"), variants([{"name": "x"}], "scene", "s"), [0], dict(SMALL))
        for name in ("fedavg", "sce")
    )
    usual = sweep_plan.read_book
    begun = threading.Thread(target=other.write_book)

    def slow(out):
        found = usual(out)
        if not begun.is_alive():
            begun.start()
            time.sleep(0.3)  # long enough for the other, if it did not wait
        return found

    monkeypatch.setattr(sweep_plan, "read_book", slow)
    one.write_book()
    monkeypatch.undo()
    begun.join()
    assert len(one.book()) == 2


@pytest.mark.slow
def test_the_job_script_is_shared_by_two_processes(tmp_path):
    """What SLURM would start, started here: two tasks of the array at once."""
    (tmp_path / "study.toml").write_text(
        'methods = ["fedavg", "sce", "gce"]\nseeds = [0, 1, 2, 3]\ndata = "digits:train=600"\nclients = 4\nrounds = 9\n'
    )
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    script = Path(__file__).parents[2] / "examples" / "slurm" / "sweep.sbatch"
    words = ["bash", str(script), str(tmp_path / "study.toml"), str(tmp_path / "out")]
    tasks = [
        subprocess.Popen(words, env=os.environ | {"PATH": path}, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    said = [task.communicate(timeout=600)[0].decode() for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0], said
    played = [int(re.findall(r"(\d+) finished", text)[-1]) for text in said]  # the last line, not the plan
    assert sum(played) == 12  # each run once
    assert min(played) >= 1
    assert [found["status"] for found in summaries(tmp_path / "out").values()] == ["finished"] * 12
    assert all(len((job / "rounds.jsonl").read_text().splitlines()) == 9 for job in (tmp_path / "out").glob("*/*/*"))
