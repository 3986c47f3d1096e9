"""The folders are the architecture: a folder uses folders above it, and the design page shows how."""

from __future__ import annotations

import ast
import re
import runpy
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "fedwinnow"
TOOL = runpy.run_path(str(ROOT / "tools" / "draw_rooms.py"))
FOLDERS, GRAPH, folder_of = list(TOOL["FOLDERS"]), TOOL["modules"](), TOOL["folder_of"]

# A class that offers `save` or `str` and leaves the writing to a file that knows the class; imported when called.
BACK = {("study/table", "study/table_writers")}


def test_the_folders_are_those_of_the_list() -> None:
    there = {folder_of(name) for name in GRAPH}
    assert there == set(FOLDERS), "add a new folder to FOLDERS in tools/draw_rooms.py, below those it uses"


def test_a_folder_uses_only_folders_above_it() -> None:
    wrong = [
        f"{name} imports {used}"
        for name, all_used in GRAPH.items()
        for used in sorted(all_used)
        if FOLDERS.index(folder_of(used)) > FOLDERS.index(folder_of(name))
    ]
    assert wrong == []


@pytest.mark.parametrize(("page", "before"), [("README.md", "src/fedwinnow/"), ("CONTRIBUTING.md", "")])
def test_the_table_of_a_page_has_the_folders_in_their_order(page: str, before: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    shown = re.findall(rf"^\| `{before}([a-z]+)/` \|", text, re.MULTILINE)
    assert [name for name in shown if name in FOLDERS] == [name for name in FOLDERS if (SOURCE / name).is_dir()]
    assert all((SOURCE / name).is_dir() or (ROOT / name).is_dir() for name in shown)


def test_only_deployment_imports_flower() -> None:
    users = {
        folder_of(path.relative_to(SOURCE).with_suffix("").as_posix())
        for path in SOURCE.rglob("*.py")
        if re.search(r"^\s*(from|import) flwr\b", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert users == {"deployment"}


def test_what_is_private_in_flower_stands_in_one_file() -> None:
    """flwr.app, flwr.clientapp and flwr.serverapp are public; the rest may change with any version."""
    public = r"^\s*(?:from|import) flwr\.(?!app\b(?!\.)|clientapp\b(?!\.)|serverapp\b(?!\.))"
    users = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if re.search(public, path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert users == {"deployment/flower_private.py"}


def test_two_modules_share_a_name_only_where_one_is_a_commands_file() -> None:
    names = Counter(name.rpartition("/")[2] for name in GRAPH if not name.startswith("commands/"))
    assert [name for name, count in names.items() if count > 1 and name != "__init__"] == []


def test_public_class_names_are_unique() -> None:
    names = Counter(
        node.name
        for path in SOURCE.rglob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_no_module_imports_itself_by_a_detour() -> None:
    """Within a room too: whoever reads a file from its imports comes to an end."""
    open_ends = {name: {one for one in used if (name, one) not in BACK} for name, used in GRAPH.items()}
    while done := {name for name, used in open_ends.items() if not used}:
        open_ends = {name: used - done for name, used in open_ends.items() if name not in done}
    assert open_ends == {}


def test_the_truth_is_out_of_reach_where_methods_are_written() -> None:
    """What a method may import cannot lead to a scene, which knows the truth."""
    for name, used in GRAPH.items():
        if folder_of(name) in ("mathematics", "federation", "steps", "methods"):
            assert "scene/scene" not in used, name
            assert not any(one.startswith(("experiment/", "auditing/")) for one in used), name


def test_the_graph_is_read_and_not_empty() -> None:
    """Guards the tests above: a known import of each kind is seen."""
    assert "federation/host" in GRAPH["federation/rounds"]  # at the top of a file
    assert "mathematics/wrong_by_loss" in GRAPH["federation/method"]  # in a function
    assert "mathematics/payload" in GRAPH["mathematics/aggregators"]  # for types alone


def test_the_design_page_shows_the_graph() -> None:
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    assert "<!-- generated: rooms -->" in page
    assert page == TOOL["current"](), "run: python tools/draw_rooms.py"


def test_the_walks_on_the_design_page_have_real_names() -> None:
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    defined = set(re.findall(r"(?:def|class) (\w+)", code)) | set(re.findall(r"^    (\w+): ", code, re.MULTILINE))
    written = {
        "verdicts.npz",
        "summary.json",
        "clients.csv",
        "own_test.csv",
        "ledger.json",
        "report.html",
        "audit.csv",
        "sites.csv",
    }
    for heading in ("## One round, with real names", "## One audit, with real names"):
        walk = page.partition(heading)[2].partition("\n## ")[0]
        named = re.findall(r"`([A-Za-z_.]+)(?:\([^`]*\))?`", walk)
        assert len(named) > 20
        assert {name for name in named if name not in written and name.rpartition(".")[2] not in defined} == set()


def test_the_walks_lead_through_no_more_files_than_the_page_says() -> None:
    """A round led through 39 files of version 0.1 and an audit through 96: at most two thirds and three quarters."""
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    tool = str(ROOT / "tools" / "count_walk.py")
    done = subprocess.run([sys.executable, tool], capture_output=True, text=True, check=True)
    for walk, most in {"round": 26, "audit": 76}.items():
        said = int(re.findall(rf"(\d+) files of ours \(`python tools/count_walk.py {walk}`", page)[0])
        counted = int(re.findall(rf"^{walk}: (\d+) files", done.stdout, re.MULTILINE)[0])
        assert counted <= said <= most
