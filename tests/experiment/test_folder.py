"""The run folder: what is in it, who may use it, and that it survives."""

from __future__ import annotations

import csv
import json
import sys
import tomllib

import numpy as np
import pytest

import stages
from fedwinnow.errors import RunError, UsageError
from fedwinnow.experiment.play import Watcher
from fedwinnow.experiment.prepare import prepare
from fedwinnow.experiment.run_folder import RunFolder
from fedwinnow.experiment.settings import Experiment
from fedwinnow.experiment.summary import summarise
from fedwinnow.testing import comparable, toy_data
from remembering import REMEMBERING, At, command, interrupt
from stages import TINY

FILES = {
    "verdicts.npz",
    "config.toml",
    "environment.json",
    "identity.json",
    "input.json",
    "scene.npz",
    "scene.json",
    "scene.csv",
    "rounds.jsonl",
    "summary.json",
    "clients.csv",
    "own_test.csv",
    "ledger.json",
    "state.safetensors",
    "state.json",
}
SCORES = {"accuracy", "balanced_accuracy", "macro_f1"}


def run(folder, **settings):
    return stages.run(folder, **{"noise": "constant:rate=0.3", **settings})


@pytest.fixture
def method(tmp_path):
    (tmp_path / "remembering.py").write_text(REMEMBERING)
    return str(tmp_path / "remembering.py")


# --- what is in it -------------------------------------------------------------------------------------------------


def test_the_folder_has_the_promised_files_and_keys(tmp_path):
    summary = run(tmp_path, validation=0.2).summary
    names = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert names - {".lock", "report.html"} == FILES
    assert {"status", "rounds", "seed", "scene", "last", "last10", "best", "validation"} <= summary.keys()
    assert summary["scene"].keys() == {"hash", "nominal_rate", "realised_rate"}
    for name in ("last", "last10", "best", "validation"):
        assert summary[name].keys() >= SCORES
    detection = summary["detection"]
    assert detection["samples"].keys() >= {"precision", "recall", "f1", "auroc"}
    assert detection["clients"].keys() == {"precision", "recall", "exact"}
    assert detection["rates"].keys() == {"pearson", "mae", "mse"}
    assert detection["relabelled"].keys() >= {"count", "correct"}
    costs = {"bytes_up", "bytes_down", "forward_samples", "backward_samples", "seconds", "peak_memory_mb"}
    assert summary["cost"].keys() == costs
    rows = list(csv.DictReader((tmp_path / "clients.csv").open()))
    assert [row["site"] for row in rows] == [f"client-{number}" for number in range(4)]
    assert [int(row["visits"]) for row in rows] == [3, 3, 3, 3]


def test_noisy_clients_are_compared_by_who_they_are(tmp_path):
    """Nominal rates are known exactly: two of four clients are noisy, so `exact` needs the estimates to agree."""
    result = run(tmp_path, noise="uniform:share=0.5,low=0.5,high=0.5", rounds=8, epochs=3)
    rows = list(csv.DictReader((tmp_path / "clients.csv").open()))
    truly = {row["site"] for row in rows if float(row["realised_rate"]) > 0.1}
    called = {row["site"] for row in rows if float(row["estimated_rate"]) > 0.1}
    clients = result.summary["detection"]["clients"]
    assert 0 < len(truly) < 4
    assert clients["exact"] == (truly == called)
    assert clients["recall"] == len(truly & called) / len(truly)


def test_unknown_figures_are_null(tmp_path):
    from dataclasses import replace

    data = replace(toy_data(), test=None, labels_trusted=False)
    result = run(tmp_path, data=data, noise="given", test=0.0)
    text = (tmp_path / "summary.json").read_text() + (tmp_path / "rounds.jsonl").read_text()
    assert "NaN" not in text
    assert "Infinity" not in text
    summary = result.summary
    nothing = dict.fromkeys(SCORES) | {"round": None}
    assert summary["last"] == summary["last10"] == summary["best"] == nothing
    assert summary["test"] is None
    assert summary["memorisation"] is None
    assert summary["detection"] == dict.fromkeys(("samples", "clients", "rates", "quality", "relabelled"))
    assert summary["scene"]["realised_rate"] is None
    assert all(row["accuracy"] is None for row in result.rounds)


def test_rounds_are_on_disk_as_they_happen(tmp_path):
    seen = []

    class Look(Watcher):
        def round(self, row):
            lines = (tmp_path / "rounds.jsonl").read_text().splitlines()
            seen.append((len(lines), json.loads(lines[-1]) == row, (tmp_path / "state.safetensors").exists()))

    run(tmp_path, watchers=(Look(),))
    assert seen == [(1, True, True), (2, True, True), (3, True, True)]


def test_last_last_ten_best_and_validation_by_hand(tmp_path):
    stage = prepare(Experiment(data=toy_data(), validation=0.2, **TINY))
    accuracy = [0.1, 0.9, 0.2, 0.9, 0.3, 0.4, 0.5, 0.6, 0.5, 0.4, 0.3, 0.2]
    held_out = [0.1, 0.2, 0.7, 0.3, 0.7, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1]
    rows = [
        {"round": number, "accuracy": a, "balanced_accuracy": a / 2, "macro_f1": a / 4, "validation_accuracy": v}
        | {"seconds": 1.0, "evaluation_seconds": 0.5}
        for number, (a, v) in enumerate(zip(accuracy, held_out, strict=True), start=1)
    ]
    rows.insert(3, {"round": 3.5, "seconds": 1.0, "evaluation_seconds": 0.0})  # a round that was not measured
    summary = summarise(stage, rows, {"bytes_up": 7.0}, "interrupted")
    assert summary["last"] == {"accuracy": 0.2, "balanced_accuracy": 0.1, "macro_f1": 0.05, "round": 12}
    assert summary["last10"]["accuracy"] == pytest.approx(np.mean(accuracy[2:]))
    assert summary["last10"]["balanced_accuracy"] == pytest.approx(np.mean(accuracy[2:]) / 2)
    assert summary["best"] == {"accuracy": 0.9, "balanced_accuracy": 0.45, "macro_f1": 0.225, "round": 2}
    assert summary["validation"]["round"] == 3
    assert summary["validation"]["accuracy"] == 0.2
    assert summary["cost"]["seconds"] == 19.0
    assert summary["cost"]["bytes_up"] == 7


def test_the_hold_out_is_noisy_and_nobody_trains_on_it():
    stage = prepare(Experiment(data=toy_data(), validation=0.25, noise="constant:rate=0.5", **TINY))
    scene, dataset = stage.scene, stage.scene.dataset
    trained = set(map(bytes, stage.sites.features.take(stage.sites.holdings.rows)))
    held_out = stage.parts["validation"].take(np.arange(len(stage.labels["validation"])))
    assert len(held_out) == 4 * (30 // 4)
    assert not trained & set(map(bytes, held_out))
    assert len(trained) + len(held_out) == len(dataset.train)
    truth = {bytes(row): label for row, label in zip(dataset.train.features.array, dataset.train.labels, strict=True)}
    wrong = [truth[bytes(row)] != label for row, label in zip(held_out, stage.labels["validation"], strict=True)]
    assert 0.2 < np.mean(wrong) < 0.8
    assert len(scene.given) == len(trained) + len(held_out)


# --- the config -----------------------------------------------------------------------------------------------------


def test_the_folders_config_gives_the_same_run_again(tmp_path, method, capsys):
    words = (
        f"run --quiet --data digits:train=100 --model mlp --clients 4 --rounds 2 --epochs 1 --batch-size 16 --seed 3 \
        --noise uniform:share=0.5,low=0.2,high=0.4 --partition dirichlet:alpha=1 --method {method}:pace=slow,limit=none"
    )
    first, second = tmp_path / "first", tmp_path / "second"
    assert command(f"{words} --out {first}") == 0
    assert command(f"run --quiet --config {first / 'config.toml'} --out {second}") == 0
    assert comparable(first) == comparable(second)
    config = tomllib.loads((first / "config.toml").read_text())
    assert config["method"] == {
        "kind": method,
        "loss": "cross_entropy",
        "mixup": 0.0,
        "aggregate": "mean",
        "steady": 0.0,
        "pace": "slow",
        "limit": "none",
    }
    assert config["data"] == "digits:train=100"
    assert config["rounds"] == 2


def test_a_saved_scene_is_named_in_the_config(tmp_path, capsys):
    assert command(f"scene make --data digits:train=100 --clients 4 --noise constant:rate=0.3 --out {tmp_path}/s") == 0
    words = "--quiet --model mlp --rounds 1 --epochs 1"
    assert command(f"run {words} --scene {tmp_path}/s --out {tmp_path}/first") == 0
    assert command(f"run --config {tmp_path}/first/config.toml --out {tmp_path}/second") == 0
    assert comparable(tmp_path / "first") == comparable(tmp_path / "second")


def test_the_environment_has_the_exact_command(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/usr/bin/fedwinnow", "run", "--method", "fedprox:mu=0.1"])
    run(tmp_path)
    environment = json.loads((tmp_path / "environment.json").read_text())
    assert environment["command"] == ["fedwinnow", "run", "--method", "fedprox:mu=0.1"]
    assert environment["packages"].keys() >= {"torch", "numpy"}
    assert environment["device"] == "cpu"


# --- who may use it -------------------------------------------------------------------------------------------------


def test_a_second_process_is_refused(tmp_path):
    with RunFolder(tmp_path).locked(), pytest.raises(UsageError, match="another process is working in this folder"):
        run(tmp_path)
    assert run(tmp_path).summary["status"] == "finished"


def test_another_config_is_refused_with_the_differing_keys(tmp_path):
    run(tmp_path, method="fedprox:mu=0.5")
    before = comparable(tmp_path)
    with pytest.raises(UsageError, match=r"differing: batch_size \(8 there, 4 now\); method.mu \(0.5 there, 0.1 now\)"):
        run(tmp_path, method="fedprox:mu=0.1", batch_size=4, resume=True)
    with pytest.raises(UsageError, match="the values of toy have changed since this run was made"):
        run(tmp_path, method="fedprox:mu=0.5", data=toy_data(samples=90), resume=True)
    assert comparable(tmp_path) == before


def test_a_run_is_continued_only_when_asked(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, watchers=(At(2, interrupt),))
    with pytest.raises(UsageError, match=r"already holds this run, which is interrupted after 2 rounds.*resume=True"):
        run(tmp_path)


def test_a_second_call_gives_the_finished_result(tmp_path):
    first = run(tmp_path)
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir() if path.name != ".lock"}
    played = []
    again = run(tmp_path, watchers=(At(1, lambda: played.append(1)),))
    assert again.summary == first.summary
    assert played == []
    assert stamps == {path: path.stat().st_mtime_ns for path in tmp_path.iterdir() if path.name != ".lock"}
    run(tmp_path, watchers=(At(1, lambda: played.append(1)),), redo=True)
    assert played == [1]


def test_a_second_call_with_more_rounds_says_how_to_go_on(tmp_path):
    run(tmp_path)
    with pytest.raises(UsageError, match=r"finished after 3 rounds\. Add resume=True to continue it, redo=True"):
        run(tmp_path, rounds=4)
    with pytest.raises(UsageError, match=r"rounds=2 was given, but this run has played 3 .*redo=True"):
        run(tmp_path, rounds=2)


def test_a_changed_cell_may_replace_its_run(tmp_path):
    run(tmp_path)
    with pytest.raises(UsageError, match=r"epochs \(1 there, 2 now\).*or add redo=True, which removes that run"):
        run(tmp_path, epochs=2)
    with pytest.raises(UsageError, match="another config"):
        run(tmp_path, epochs=2, redo="stale")
    assert run(tmp_path, epochs=2, redo=True).summary["status"] == "finished"
    assert tomllib.loads((tmp_path / "config.toml").read_text())["epochs"] == 2


def test_a_finished_run_is_not_repeated(tmp_path):
    run(tmp_path)
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir() if path.name != ".lock"}
    assert run(tmp_path, resume=True).summary["status"] == "finished"
    with pytest.raises(UsageError, match="rounds=2 was given, but this run has played 3 already; allowed: 3 or more"):
        run(tmp_path, resume=True, rounds=2)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir() if path.name != ".lock"} == stamps


def test_fewer_rounds_than_were_played_are_refused(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, watchers=(At(2, interrupt),))
    with pytest.raises(UsageError, match="rounds=1 was given, but this run has played 2 already"):
        run(tmp_path, resume=True, rounds=1)
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "interrupted"  # and not failed


def test_the_store_refuses_a_nan_rather_than_writing_it(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        RunFolder(tmp_path).append_round({"round": 1, "accuracy": float("nan")})


def test_a_run_can_be_read_back(tmp_path):
    result = run(tmp_path, eval_every=2, rounds=4)
    rounds, accuracy = result.curve()
    assert rounds.tolist() == [2, 4]
    assert accuracy.tolist() == [row["accuracy"] for row in result.rounds if "accuracy" in row]
    with pytest.raises(UsageError, match="Did you mean 'accuracy'"):
        result.curve("acuracy")
    with pytest.raises(RunError, match="no client has a sample"):
        stages.ready(tmp_path / "none", method="oracle", noise="constant:rate=1").play()
