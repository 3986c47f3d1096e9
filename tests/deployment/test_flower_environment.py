"""Flower is imported only where it may be, and only after it was told to be quiet."""

from __future__ import annotations

import ast
import os
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

import fedwinnow
from fedwinnow.deployment import flower_environment
from fedwinnow.errors import UsageError

SOURCE = Path(fedwinnow.__file__).parent


def imported(path: Path) -> set[str]:
    """The packages that a file imports anywhere."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found.add(node.module.partition(".")[0])
    return found


def test_only_the_files_for_flower_import_it() -> None:
    users = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py") if "flwr" in imported(path)}
    assert users
    assert all(name.startswith("deployment/flower_") for name in users)


def test_only_one_file_imports_what_is_private_in_flower() -> None:
    public = {"flwr.app", "flwr.serverapp", "flwr.clientapp"}
    users = set()
    for path in SOURCE.rglob("*.py"):
        nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
        if {node.module for node in nodes if (node.module or "").startswith("flwr")} - public:
            users.add(path.relative_to(SOURCE).as_posix())
    assert users == {"deployment/flower_private.py"}


def test_settings_of_flower_are_set_and_those_of_the_user_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower_environment, "version", lambda name: "1.41.3")
    monkeypatch.setattr(os, "environ", {"FLWR_HOME": "mine"})
    flower_environment.prepare("serve")
    assert os.environ["FLWR_TELEMETRY_ENABLED"] == "0"
    assert os.environ["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert os.environ["FLWR_HOME"] == "mine"


def test_the_extra_brings_the_version_that_serve_and_join_accept() -> None:
    project = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["optional-dependencies"]["flower"] == [f"flwr=={flower_environment.SUITABLE}.*"]
    pins = (SOURCE.parents[1] / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert [pin for pin in pins if pin.startswith(f"flwr=={flower_environment.SUITABLE}.")] != []


def test_another_version_and_none_at_all_are_errors_that_say_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower_environment, "version", lambda name: "1.42.0")
    with pytest.raises(UsageError, match=r"1\.42\.0 is installed.*pip install 'flwr==1\.41"):
        flower_environment.prepare("join")

    def absent(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(flower_environment, "version", absent)
    with pytest.raises(UsageError, match=r"fedwinnow join needs the extra 'flower'"):
        flower_environment.prepare("join")
