"""Every command that reads a folder reads one of version 0.1.0, and refuses one of a newer version in a sentence."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from damaging import FINISHED, OLD, SWEEP, UNFINISHED, report, review, spoken
from fedwinnow.data.load import load
from fedwinnow.deployment.real_sites import real_stage, task_data
from fedwinnow.errors import DataError
from fedwinnow.experiment.play import Execution
from fedwinnow.experiment.run_folder import RunFolder
from fedwinnow.experiment.settings import Experiment
from fedwinnow.experiment.summary import config_of
from fedwinnow.files import FORMAT

PATIENTS = "--data csv:path=patients.csv,label=diagnosis,id=patient"
JOIN = (
    "join --quiet --yes --insecure --server 127.0.0.1:1 --patience 0 --name site-a --data "
    "csv:path=site-a.csv,label=diagnosis,id=patient,schema=schema.json --out site-a"
)

# What is done with which folder, and how it ends for one of version 0.1.0; a text is what an error says.
COMMANDS = {
    "run --resume, finished": ("run", f"{FINISHED} --rounds 4", 0),
    "run --resume, more rounds": ("run", f"{FINISHED} --rounds 5", "Add --redo"),
    "run --redo, more rounds": ("run", f"{FINISHED} --redo --rounds 5", 0),
    "run --resume, unfinished": ("unfinished", UNFINISHED, "Add --redo"),
    "run --resume with an option of today": (
        "run",
        f"{FINISHED} --rounds 4 --least-count 3",
        "least_count (0 there, 3 now)",
    ),
    "run --config": ("run", "run --quiet --config run/config.toml --rounds 1 --out other", 0),
    "run --scene": ("scene", "run --quiet --scene scene --rounds 1 --epochs 1 --model linear --out other", 0),
    "table": ("run", "table run", 0),
    "table of a sweep": ("sweep", "table sweep", 0),
    "table, unfinished": ("unfinished", "table unfinished", "no run is finished"),
    "figure": ("run", "figure curves run --out picture.png", 0),
    "figure, unfinished": ("unfinished", "figure curves unfinished --out picture.png", "no run is finished"),
    "sweep": ("sweep", SWEEP, 0),
    "audit --run": ("run", "audit --quiet --run run --out other", 0),
    "audit": ("audit", f"audit --quiet {PATIENTS} --site hospital --out audit", "already holds an audit"),
    "review": ("audit", "review audit/north", 0),
    "review of a site": ("site-a", "review site-a", 0),
    "apply": ("audit", "apply audit --out other.csv", 0),
    "apply of a site": ("site-a", "apply site-a --accept-above 0.5 --without-looks --out other.csv", 0),
    "apply --undo": ("corrected.csv.apply.json", "apply --undo corrected.csv --out other.csv", 0),
    "scene show": ("scene", "scene show scene", 0),
    "scene draw": ("scene", "scene draw scene", 0),
    "scene export": ("scene", "scene export scene --out other.npz", 0),
    "scene of a run": ("run", "scene show run", 0),
    "report": ("run", "report run", 0),
    "join": ("site-a", JOIN, "127.0.0.1:1"),  # nobody is there; it gets as far as looking for the coordinator
}
FILES = ("config.toml", "scene.json", "site.json", "sweep.json", "audit.json", "join.json")


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A copy of the old folders to work in."""
    shutil.copytree(OLD, tmp_path / "home")
    monkeypatch.chdir(tmp_path / "home")
    return tmp_path / "home"


def outcome(words: str) -> tuple[int, str]:
    """Exit code and errors of a command; two of them have no end or no command line, and are called from Python."""
    for name, function in (("review ", review), ("report ", report)):
        if words.startswith(name):
            return function(words.removeprefix(name))
    return spoken(words)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_folder_of_the_first_version_is_read(name, home):
    if "join" in name:
        pytest.importorskip("flwr")
    _, words, expected = COMMANDS[name]
    code, said = outcome(words)
    if expected == 0:
        assert (code, said) == (0, "")
    else:
        assert code in (2, 3, 4)
        assert expected in said
        assert said.count("\n") <= 1


def make_newer(place: Path) -> None:
    """Let everything in a folder say that it has a format that is yet to come."""
    for path in [place] if place.is_file() else place.rglob("*"):
        if path.name == "config.toml":
            path.write_text(f"format = {FORMAT + 1}\n" + path.read_text(encoding="utf-8"), encoding="utf-8")
        elif path.name in FILES or path.name.endswith(".apply.json"):
            content = json.loads(path.read_text(encoding="utf-8"))
            path.write_text(json.dumps(content | {"format": FORMAT + 1}), encoding="utf-8")


def contents(place: Path) -> dict[Path, bytes]:
    """Every file of a folder, besides locks."""
    return {path: path.read_bytes() for path in place.rglob("*") if path.is_file() and "lock" not in path.name}


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "audit"])  # which never goes on with a whole one
def test_a_folder_of_a_newer_version_is_refused(name, home):
    if "join" in name:
        pytest.importorskip("flwr")
    place, words, _ = COMMANDS[name]
    make_newer(home / place)
    before = {
        path: path.read_bytes() for path in (home / place).rglob("*") if path.is_file() and "lock" not in path.name
    }
    code, said = outcome(words)
    assert code == 3
    assert re.fullmatch(r"error: .*: made by a newer fedwinnow \(format 3; .*\)\. Upgrade fedwinnow\.\n?", said), said
    after = {
        path: path.read_bytes() for path in (home / place).rglob("*") if path.is_file() and "lock" not in path.name
    }
    assert after == before


def test_serve_resume(home):
    """Without a network: the folder is looked at before the first site is asked, and compared when all have come."""
    pytest.importorskip("flwr")
    from fedwinnow.deployment.flower_run import Terms, coordinate

    spec = "csv:path=own.csv,label=diagnosis,id=patient,schema=schema.json"
    settings = {"model": "mlp:hidden=4", "method": "fedfixer", "rounds": 3, "epochs": 1, "participation": 1.0}
    experiment = Experiment(data=spec, **settings)
    stage = real_stage(experiment, task_data(load(spec)), {"site-a": 60, "site-b": 60})
    RunFolder(home / "coordinator").check(config_of(stage), stage.scene.hash, resume=True)
    make_newer(home / "coordinator")
    with pytest.raises(DataError, match="made by a newer fedwinnow"):
        coordinate(None, experiment, home / "coordinator", Execution(resume=True), Terms(2, 1, 1, print, {}.get))


def test_an_old_run_that_goes_on_becomes_a_new_one(home):
    assert outcome(f"{UNFINISHED} --redo") == (0, "")
    assert (home / "unfinished" / "config.toml").read_text().startswith(f"format = {FORMAT}\n")
    whole = (home / "unfinished" / "state.safetensors").read_bytes()
    assert b"checksum" in whole
    (home / "unfinished" / "state.safetensors").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    code, said = outcome(UNFINISHED.replace("--rounds 8", "--rounds 9"))
    assert (code, "state.safetensors: damaged" in said) == (3, True)


def test_everything_that_is_written_now_says_its_format(home):
    for words in (
        "scene make --quiet --data digits:train=150 --clients 4 --out new/scene",
        "run --quiet --scene new/scene --rounds 1 --epochs 1 --model linear --out new/run",
        "sweep --quiet --scene new/scene --seeds 0 --rounds 1 --epochs 1 --model linear --out new/sweep",
        f"audit --quiet {PATIENTS} --site hospital --rounds 1 --epochs 1 --model linear --no-self-test --out new/audit",
    ):
        assert outcome(words)[0] == 0
    found = [path for path in (home / "new").rglob("*") if path.name in FILES]
    assert {path.name for path in found} == set(FILES) - {"join.json"}
    for path in found:
        text = path.read_text(encoding="utf-8")
        assert re.search(rf"^format = {FORMAT}$" if path.suffix == ".toml" else rf'"format": {FORMAT}\b', text, re.M), (
            path
        )


def test_a_sweep_that_asks_for_fewer_rounds_than_a_finished_run_has_is_refused(home):
    before = contents(home / "sweep")
    code, said = outcome(SWEEP.replace("--rounds 2", "--rounds 1"))
    assert code == 2
    assert "holds a finished run of 2 rounds, but the sweep has 1 rounds; allowed: 2 or more, or another --out" in said
    assert contents(home / "sweep") == before
