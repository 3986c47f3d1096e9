"""A run's own config.toml repeats it, and its report says how."""

from __future__ import annotations

import json
from pathlib import Path

import fedwinnow
from fedwinnow.cli import dispatch
from fedwinnow.experiment.summary import from_command_line
from fedwinnow.testing import comparable


def test_the_config_of_a_run_gives_the_same_run(tmp_path: Path) -> None:
    settings = {"clients": 5, "rounds": 2, "epochs": 1, "method": "fedprox:mu=0.5", "noise": "constant:rate=0.3"}
    first = fedwinnow.run(out=tmp_path / "first", **settings)
    again = tmp_path / "again"
    assert dispatch(["run", "--config", str(first.folder / "config.toml"), "--out", str(again), "--quiet"]) == 0
    assert comparable(again) == comparable(first.folder)
    assert json.loads((first.folder / "environment.json").read_text())["command"] is None
    assert "fedwinnow run --config config.toml" in (first.folder / "report.html").read_text(encoding="utf-8")


def test_only_the_command_itself_counts_as_the_command() -> None:
    for program in ("bin/fedwinnow", "Scripts/fedwinnow.exe", "site-packages/fedwinnow/__main__.py"):
        assert from_command_line(Path(program))
    for program in ("bin/pytest", "site-packages/pytest/__main__.py", "my_script.py", ""):
        assert not from_command_line(Path(program))
