"""Damaged files of runs, scenes, audits and sweeps: each command ends with an exit code and a sentence."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from damaging import FINISHED, OLD, report, review, spoken, tried, variants

COMMANDS = {
    "run": [lambda: spoken(f"{FINISHED} --rounds 4"), lambda: spoken("table run"), lambda: report("run")],
    "scene": [lambda: spoken("scene show scene"), lambda: spoken("scene export scene --out exported.npz")],
    "audit": [
        lambda: review("audit/north"),
        lambda: spoken("apply audit --accept-above 0.5 --without-looks --out audit/new.csv"),
    ],
    "sweep": [lambda: spoken("table sweep")],
    "receipt": [lambda: spoken("apply --undo receipt/corrected.csv --out receipt/new.csv")],
    "import": [lambda: spoken("scene import --data digits:train=150 --from import/scene.npz --out import/new")],
}
LEFT_OUT = {".html"}
AT_MOST = 14  # damaged files of each folder


@pytest.fixture
def home(tmp_path, monkeypatch):
    shutil.copytree(OLD, tmp_path / "home")
    monkeypatch.chdir(tmp_path / "home")
    Path("receipt").mkdir()
    for name in ("corrected.csv", "corrected.csv.apply.json"):
        shutil.copy(name, "receipt")
    assert spoken("scene export scene --out import/scene.npz")[0] == 0
    return tmp_path / "home"


@pytest.mark.parametrize("place", COMMANDS)
def test_no_damage_is_a_traceback(home, place):
    luck, folder = random.Random(7), home / place
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix not in LEFT_OUT]
    damages = [(path, content) for path in files for content in variants(path, luck, times=8)]
    assert len(damages) >= 6
    found = []
    for path, content in luck.sample(damages, min(len(damages), AT_MOST)):
        found += tried(folder, path.relative_to(folder).as_posix(), content, COMMANDS[place])
    assert found == []


def test_bytes_that_are_no_text_are_named(home):
    for name in ("summary.json", "rounds.jsonl", "config.toml", "environment.json", "clients.csv", "ledger.json"):
        path = home / "run" / name
        whole = path.read_bytes()
        path.write_bytes(whole[:10] + b"\xff\xfe" + whole[10:])
        code, said = report("run")
        assert (code, f"{name}: not the text that was written here" in said) == (3, True), said
        path.write_bytes(whole)


@pytest.mark.parametrize("content", [b"", b"\n", b"\xef\xbb\xbf", b"id\n", b"\x00"])
def test_an_audit_without_columns_is_refused(home, content):
    (home / "audit" / "north" / "audit.csv").write_bytes(content)
    assert review("audit/north")[0] == 3
    assert spoken("apply audit --accept-above 0.5 --without-looks --out audit/new.csv")[0] == 3
