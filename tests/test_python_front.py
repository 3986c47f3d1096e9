"""Python and the command line are one thing: the same names, the same defaults, the same results, visible types."""

from __future__ import annotations

import dataclasses
import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fedwinnow
from fedwinnow.cli import main
from fedwinnow.commands.audit import Audit
from fedwinnow.commands.run import Run
from fedwinnow.commands.sweep import Sweep
from fedwinnow.commands.table import TableOfRuns
from fedwinnow.errors import UsageError
from fedwinnow.experiment.settings import Experiment, default_folder
from fedwinnow.flags import flags_of
from fedwinnow.setting import shown

PRINTING = {"json", "quiet"}  # a program prints by itself
# What has another form in Python: a name, or the same value written otherwise.
OTHERWISE: dict[str, dict[str, Any]] = {
    "run": {"config": "a file; Python has dictionaries"},
    "sweep": {
        "config": "a file; Python has dictionaries",
        "methods": "the first argument, which says () as ('fedavg',)",
        "partitions": "scenes=[{'partition': ...}]",
        "noises": "scenes=[{'noise': ...}]",
        "seeds": "3 is 0, 1, 2",
        "plan": "a program asks for what it wants to run",
    },
    "table": {
        "format": "str(table) and table.save",
        "out": "table.save",
        "rows": "a sequence instead of commas",
        "rename": "a dictionary; () says none",
    },
    "audit": {
        "run": "run=",
        "no-self-test": "self_test=, withdrawn",
        "update": "fedwinnow.update_audit",
        "look-cost": "fedwinnow.update_audit",
    },
}
FRONTS = {
    "run": (Run, fedwinnow.run),
    "sweep": (Sweep, fedwinnow.sweep),
    "table": (TableOfRuns, fedwinnow.table),
    "audit": (Audit, fedwinnow.audit),
}


def defaults_of(command: type[Any]) -> dict[str, Any]:
    """The flags of a command, as a program would name them, with their defaults."""
    shown = {name.removeprefix("--") for name in flags_of(command)[0]}
    return {
        field.name: field.default
        for field in dataclasses.fields(command)
        if field.name.replace("_", "-") in shown and field.name not in PRINTING
    }


@pytest.mark.parametrize("name", FRONTS)
def test_every_flag_is_a_keyword_with_the_same_default(name: str) -> None:
    command, function = FRONTS[name]
    python = {
        key: parameter.default
        for key, parameter in inspect.signature(function).parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }
    for flag, default in defaults_of(command).items():
        if flag.replace("_", "-") in OTHERWISE[name]:
            continue
        assert flag in python, f"fedwinnow {name} --{flag} has no keyword"
        assert str(python[flag]) == str(default), f"{name}: {flag}"


@pytest.mark.parametrize("name", FRONTS)
def test_what_differs_still_exists(name: str) -> None:
    """Guards the list of exceptions: a flag that is gone must leave it."""
    flags = {flag.removeprefix("--") for flag in flags_of(FRONTS[name][0])[0]}
    assert OTHERWISE[name].keys() <= flags


@pytest.mark.parametrize(("name", "unnamed"), [("run", set()), ("sweep", {"method", "seed"}), ("audit", set())])
def test_help_names_every_keyword_with_its_default(name: str, unnamed: set[str]) -> None:
    text = inspect.getdoc(FRONTS[name][1]) or ""
    parameters = inspect.signature(FRONTS[name][1]).parameters.values()
    assert len(parameters) > 30
    missing = {one.name for one in parameters if f"    {one.name}={shown(one.default)} " not in text}
    assert missing == unnamed
    assert f"fedwinnow.{name}(" in text or name == "audit"


@pytest.mark.parametrize("function", [fedwinnow.run, fedwinnow.sweep, fedwinnow.table, fedwinnow.audit])
def test_help_begins_with_what_it_is_for(function: Any) -> None:
    first, _, rest = (inspect.getdoc(function) or "").partition("\n\n")
    assert first.endswith(".")
    assert len(rest) > 200


def test_a_misspelt_keyword_is_answered() -> None:
    with pytest.raises(UsageError, match="Did you mean 'rounds'"):
        fedwinnow.run(round=3)  # type: ignore[call-arg]


@pytest.mark.parametrize("name", ["data", "clients", "partition", "noise", "test"])
def test_what_a_saved_scene_has_decided_is_not_asked_for_again(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    other: dict[str, Any] = {"data": "iris", "clients": 3, "partition": "shards", "noise": "given", "test": 0.5}
    with pytest.raises(UsageError, match=f"{name}={other[name]} was given beside a saved scene"):
        fedwinnow.run(scene="nowhere", **{name: other[name]})
    for command in ("run", "sweep"):
        with pytest.raises(SystemExit) as ended:
            main([command, "--scene", "nowhere", f"--{name}", str(other[name])])
        assert ended.value.code == 2
        assert "beside a saved scene" in capsys.readouterr().err


def test_a_sweep_takes_several_and_not_one() -> None:
    with pytest.raises(UsageError, match="method= was given to a sweep; allowed: methods="):
        fedwinnow.sweep(method="fedprox")
    with pytest.raises(UsageError, match="seed= was given to a sweep; allowed: seeds="):
        fedwinnow.sweep(["fedavg"], seed=3)


def test_an_audit_by_a_run_takes_no_settings_of_training() -> None:
    with pytest.raises(UsageError, match="rounds= was given with run="):
        fedwinnow.audit(run="nowhere", rounds=3)


def test_both_give_the_same_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "--data digits:train=60 --model linear --clients 3 --rounds 2 --epochs 1 --noise constant:rate=0.3"
    with pytest.raises(SystemExit) as ended:
        main(["run", *words.split(), "--out", str(tmp_path / "command"), "--json"])
    assert ended.value.code == 0
    printed = json.loads(capsys.readouterr().out)
    result = fedwinnow.run(
        data="digits:train=60",
        model="linear",
        clients=3,
        rounds=2,
        epochs=1,
        noise="constant:rate=0.3",
        out=tmp_path / "python",
    )
    for name in ("last10", "best", "detection", "memorisation", "scene", "method", "seed"):
        assert printed[name] == result.summary[name]
    assert (tmp_path / "command" / "config.toml").read_text() == (tmp_path / "python" / "config.toml").read_text()


USER = """
import fedwinnow

result = fedwinnow.run(method="fedavg", rounds=2, out="runs/first")
reveal_type(result)
reveal_type(result.summary)
reveal_type(fedwinnow.table("runs"))
reveal_type(fedwinnow.sweep(["fedavg"], seeds=1, rounds=2))
reveal_type(fedwinnow.audit([[0.0], [1.0]], [0, 1], clients=2, rounds=2))
fedwinnow.audit(data="digits", treshold=0.5)
fedwinnow.audit(data="digits", rounds="two")
fedwinnow.sweep(["fedavg"], sedes=1)
fedwinnow.run(rouds=2)
fedwinnow.run(rounds="two")
fedwinnow.run("digits")
reveal_type(fedwinnow.run)
"""


def test_a_type_checker_sees_the_types(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    (tmp_path / "user.py").write_text(USER)
    source = Path(fedwinnow.__file__).parent
    assert (source / "py.typed").exists()
    # What does not show in these types is not read: torch alone takes a minute.
    (tmp_path / "mypy.ini").write_text("[mypy-torch.*,numpy.*,scipy.*,rich.*,tyro.*,PIL.*]\nfollow_imports = skip\n")
    words = ["--follow-imports=silent", "--ignore-missing-imports", "--python-version=3.11", "user.py"]
    # The package's own files are found beside the user's, as they would be when installed.
    (tmp_path / "fedwinnow").symlink_to(source, target_is_directory=True)
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", *words], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=900
    )
    said = checked.stdout
    assert 'Revealed type is "fedwinnow.experiment.result.Result"' in said, said + checked.stderr
    assert 'Revealed type is "fedwinnow.study.table.Table"' in said
    assert 'Revealed type is "fedwinnow.study.sweep.Swept"' in said
    assert 'Revealed type is "fedwinnow.auditing.audit_from_python.AuditResult"' in said
    assert 'Unexpected keyword argument "rouds"' in said
    assert 'Unexpected keyword argument "treshold"' in said
    assert 'Argument "rounds" to "run" has incompatible type "str"' in said
    assert 'Unexpected keyword argument "sedes"' in said
    assert 'matches argument types "str", "str"' in said
    assert 'Too many positional arguments for "run"' in said
    assert "def (*, data: Any =, clients: int =, partition: Any =, " in said


def test_the_run_folder_is_named_after_the_data_or_the_scene() -> None:
    assert default_folder(Experiment(method="fedprox:mu=1", seed=3)) == Path("runs/fedprox-mu-1-digits-3")
    assert default_folder(Experiment(scene="scenes/mine")) == Path("runs/fedavg-mine-0")
