"""Runs that are continued: after more rounds were asked for, an interruption, a full disk, damage."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import stages
from fedwinnow.errors import DataError
from fedwinnow.experiment.run_folder import RunFolder
from fedwinnow.testing import comparable
from remembering import REMEMBERING, At, command, interrupt


def run(folder, **settings):
    return stages.run(folder, **{"noise": "constant:rate=0.3", **settings})


@pytest.fixture
def method(tmp_path):
    (tmp_path / "remembering.py").write_text(REMEMBERING)
    return str(tmp_path / "remembering.py")


@pytest.mark.parametrize("eval_every", [1, 2])
@pytest.mark.parametrize("batch_norm", ["average", "local"])
def test_more_rounds_equal_a_longer_run(tmp_path, method, eval_every, batch_norm):
    settings = {"method": method, "eval_every": eval_every, "participation": 0.5, "batch_norm": batch_norm}
    settings |= {"data": "digits:train=60", "model": "lenet:norm=batch", "validation": 0.2}
    run(tmp_path / "a", rounds=3, **settings)
    longer = run(tmp_path / "a", rounds=5, resume=True, **settings)
    straight = run(tmp_path / "b", rounds=5, **settings)
    assert comparable(longer.folder) == comparable(straight.folder)
    assert longer.summary["last"]["round"] == 5


def test_judging_leaves_no_trace_in_a_clients_memory(tmp_path, method):
    file = Path(method)
    file.write_text(
        file.read_text()
        + "\n    def verdict(self, client, got):\n        client.state['visits'] = torch.full((1,), 99.0)\n"
        "        return super().verdict(client, got)\n"
    )
    run(tmp_path / "a", method=method, participation=0.5, rounds=2)
    from safetensors.torch import load_file

    found = {path.name: load_file(path)["visits"].item() for path in (tmp_path / "a" / "clients").iterdir()}
    state = json.loads((tmp_path / "a" / "state.json").read_text())
    assert sorted(found) == sorted(state["memory"].values())
    assert set(found.values()) <= {1.0, 2.0}


def test_rare_checkpoints_lose_no_round_to_an_interruption(tmp_path, method):
    settings = {"method": method, "participation": 0.5, "rounds": 8}
    straight = run(tmp_path / "straight", **settings)
    folder = tmp_path / "run"
    states = []
    look = [At(number, lambda: states.append((folder / "state.safetensors").exists())) for number in (2, 3)]
    with pytest.raises(KeyboardInterrupt):
        run(folder, **settings, checkpoint_every=3, watchers=(*look, At(5, interrupt)))
    assert states == [False, True]
    assert json.loads((folder / "state.json").read_text())["round"] == 5
    assert json.loads((folder / "summary.json").read_text())["status"] == "interrupted"
    resumed = run(folder, **settings, checkpoint_every=3, resume=True)
    assert comparable(resumed.folder) == comparable(straight.folder)


def test_rounds_after_the_last_checkpoint_are_played_again(tmp_path, method):
    settings = {"method": method, "participation": 0.5, "rounds": 8}
    straight = run(tmp_path / "straight", **settings)

    class Gone(BaseException):
        """Like a kill: nothing is saved."""

    def vanish():
        raise Gone

    folder = tmp_path / "run"
    with pytest.raises(Gone):
        run(folder, **settings, checkpoint_every=3, watchers=(At(5, vanish),))
    assert json.loads((folder / "state.json").read_text())["round"] == 3
    assert len((folder / "rounds.jsonl").read_text().splitlines()) == 5
    assert comparable(run(folder, **settings, resume=True).folder) == comparable(straight.folder)


def test_what_a_killed_write_left_is_swept_out(tmp_path):
    run(tmp_path)
    for name in (".state.safetensors.0123456789abcdef", ".rounds.jsonl.d72ecc4685ac2285"):
        (tmp_path / name).write_text("half")
    (tmp_path / ".mine").write_text("not ours")
    run(tmp_path, rounds=4, resume=True)
    assert {path.name for path in tmp_path.iterdir() if path.name.startswith(".")} == {".lock", ".mine"}


def test_a_damaged_file_is_a_data_error(tmp_path):
    run(tmp_path)
    state = tmp_path / "state.safetensors"
    whole = state.read_bytes()
    for damage in (whole[: len(whole) // 2], b"", b"\xff" * 100):
        state.write_bytes(damage)
        with pytest.raises(DataError, match=r"state.safetensors: damaged"):
            run(tmp_path, rounds=4, resume=True)
    state.write_bytes(whole)
    (tmp_path / "rounds.jsonl").write_text('{"round": 1}\n{broken\n')
    with pytest.raises(DataError, match=r"rounds.jsonl, line 2: not the JSON"):
        run(tmp_path, rounds=4, resume=True)
    (tmp_path / "config.toml").write_text("[broken")
    with pytest.raises(DataError, match=r"config.toml: not the settings of a run"):
        run(tmp_path, rounds=4, resume=True)


# --- a full disk, an impatient user ---------------------------------------------------------------------------------


@pytest.mark.parametrize("victim", ["state.safetensors", "state.json", "rounds.jsonl", "clients"])
def test_a_full_disk_ends_clearly_and_the_last_good_round_survives(tmp_path, method, monkeypatch, capsys, victim):
    words = f"run --data digits:train=100 --model mlp --clients 4 --rounds 4 --epochs 1 --method {method}"
    assert command(f"{words} --quiet --out {tmp_path}/straight") == 0
    folder = tmp_path / "run"

    def full_after_round_two(path) -> None:
        rows = folder / "rounds.jsonl"
        if victim in str(path) and rows.exists() and len(rows.read_text().splitlines()) >= 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        replace, rename, opened = os.replace, Path.replace, Path.open
        patch.setattr(os, "replace", lambda a, b: (full_after_round_two(b), replace(a, b))[1])
        patch.setattr(Path, "replace", lambda a, b: (full_after_round_two(b), rename(a, b))[1])
        if victim == "rounds.jsonl":
            patch.setattr(
                Path, "open", lambda p, *a, **k: ("a" in a and full_after_round_two(p), opened(p, *a, **k))[1]
            )
        assert command(f"{words} --quiet --out {folder}") == 4
    message = capsys.readouterr().err
    assert "No space left on device" in message
    assert "Traceback" not in message
    done = json.loads((folder / "state.json").read_text())["round"]
    assert done in (1, 2)
    assert command(f"{words} --quiet --resume --out {folder}") == 0
    assert comparable(folder) == comparable(tmp_path / "straight")


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        run(tmp_path / "file" / "run")


def test_control_c_saves_and_says_how_to_go_on(tmp_path):
    words = [
        sys.executable,
        "-m",
        "fedwinnow",
        "run",
        "--data",
        "digits:train=200",
        "--model",
        "mlp",
        "--rounds",
        "400",
    ]
    words += ["--epochs", "1", "--clients", "4", "--out", str(tmp_path / "run"), "--checkpoint-every", "1000"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    rows = tmp_path / "run" / "rounds.jsonl"
    while not (rows.exists() and len(rows.read_text().splitlines()) > 3):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate()
    assert process.returncode == 130
    assert "--resume" in output
    assert "Traceback" not in output
    state = json.loads((tmp_path / "run" / "state.json").read_text())
    assert state["round"] == len(rows.read_text().splitlines()) > 3
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["status"], summary["rounds"]) == ("interrupted", state["round"])


def test_a_round_that_was_cut_off_after_its_line_is_played_again(tmp_path, monkeypatch):
    """Ctrl-C between the line of a round and its checkpoint: lines, state and summary are of the same round."""
    whole = stages.run(tmp_path / "whole", rounds=5)
    usual, calls = RunFolder.append_round, []

    def interrupted(folder, row):
        usual(folder, row)
        calls.append(row)
        if len(calls) == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "append_round", interrupted)
        with pytest.raises(KeyboardInterrupt):
            stages.run(tmp_path / "cut", rounds=5)
    folder = RunFolder(tmp_path / "cut")
    assert len(folder.rounds()) == folder.read_json("summary.json")["rounds"] == 2
    assert json.loads((tmp_path / "cut" / "state.json").read_text())["round"] == 2
    stages.run(tmp_path / "cut", rounds=5, resume=True)
    assert comparable(tmp_path / "cut") == comparable(whole.folder)
