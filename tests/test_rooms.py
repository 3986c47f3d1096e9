"""The rooms of the house: imports go one way, from upper rooms to lower ones, and the design page shows how."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parent.parent
TOOL = runpy.run_path(str(ROOT / "tools" / "draw_rooms.py"))
ROOMS, GRAPH = list(TOOL["ROOMS"]), TOOL["modules"]()

# A class that offers `save` or `str` and leaves the writing to a file that knows the class; imported when called.
BACK = {("scene/scene", "scene/files"), ("study/table", "study/writers")}


def room(name: str) -> str:
    return str(TOOL["room_of"](name, GRAPH))


def test_every_module_has_a_room() -> None:
    homeless = {name for name in GRAPH if room(name) not in ROOMS}
    assert homeless == set(), "add the room to ROOMS in tools/draw_rooms.py, above those it uses"


def test_a_room_uses_only_rooms_below_it() -> None:
    upward = [
        f"{name} ({room(name)}) imports {used} ({room(used)})"
        for name, all_used in GRAPH.items()
        for used in sorted(all_used)
        if ROOMS.index(room(used)) > ROOMS.index(room(name))
    ]
    assert upward == []


def test_no_module_imports_itself_by_a_detour() -> None:
    """Within a room too: whoever reads a file from its imports comes to an end."""
    open_ends = {name: {one for one in used if (name, one) not in BACK} for name, used in GRAPH.items()}
    while done := {name for name, used in open_ends.items() if not used}:
        open_ends = {name: used - done for name, used in open_ends.items() if name not in done}
    assert open_ends == {}


def test_the_truth_is_out_of_reach_where_methods_are_written() -> None:
    """What a method may import cannot lead to a scene, which knows the truth."""
    for name, used in GRAPH.items():
        if room(name) in ("payload", "parts", "federation", "steps", "methods"):
            assert "scene/scene" not in used, name
            assert not any(one.startswith(("experiment/", "auditing/")) for one in used), name


def test_the_graph_is_read_and_not_empty() -> None:
    """Guards the tests above: a known import of each kind is seen."""
    assert "federation/host" in GRAPH["federation/rounds"]  # at the top of a file
    assert "parts/wrong_by_loss" in GRAPH["federation/method"]  # in a function
    assert "federation/payload" in GRAPH["parts/aggregators"]  # for types alone
    assert room("parts/losses") == "parts"
    assert room("parts/history") == "steps"


def test_the_design_page_shows_the_graph() -> None:
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    assert "<!-- generated: rooms -->" in page
    assert page == TOOL["current"](), "run: python tools/draw_rooms.py"


def test_the_round_that_the_design_page_follows_has_real_names() -> None:
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    walk = page.partition("## One round, with real names")[2].partition("\n## ")[0]
    named = re.findall(r"`([A-Za-z_.]+)(?:\([^`]*\))?`", walk)
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    defined = set(re.findall(r"(?:def|class) (\w+)", code))
    files = {"verdicts.npz", "summary.json", "clients.csv", "ledger.json", "report.html"}
    assert len(named) > 30
    assert {name for name in named if name not in files and name.rpartition(".")[2] not in defined} == set()
