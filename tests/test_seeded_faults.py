"""The list of seeded faults cannot rot: every place is still there once, and so is every test that must notice."""

from __future__ import annotations

import dataclasses
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from fedwinnow.files import package_source

ROOT = Path(__file__).parent.parent
FEWEST = 60


def the_tool():
    found = spec_from_file_location("seed_faults", ROOT / "tools" / "seed_faults.py")
    module = module_from_spec(found)
    sys.modules["seed_faults"] = module  # a dataclass looks its module up
    found.loader.exec_module(module)
    return module


TOOL = the_tool()
FAULTS = TOOL.read_faults()


def test_every_place_is_there_once_and_every_test_exists():
    assert TOOL.problems(FAULTS) == [], "repair tools/faults.toml"
    assert len(FAULTS) >= FEWEST


def test_the_faults_are_spread_over_all_folders():
    folders = {path.name for path in (ROOT / "src" / "fedwinnow").iterdir() if (path / "__init__.py").exists()}
    assert folders - {fault.file.partition("/")[0] for fault in FAULTS} == set()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"old": "a text that is nowhere"}, "0 times; needed: once"),
        ({"old": "def "}, "times; needed: once"),
        ({"new": FAULTS[0].old}, "it changes nothing"),
        ({"file": "nowhere.py"}, "there is no src"),
        ({"tests": ("tests/test_nowhere.py",)}, "there is no tests/test_nowhere.py"),
        ({"tests": ("tests/test_options.py::test_that_nobody_wrote",)}, "there is no tests/test_options.py::test_that"),
        ({"tests": ()}, "it names no test"),
    ],
)
def test_a_fault_that_has_lost_its_place_is_named(changes, words):
    (problem,) = TOOL.problems([dataclasses.replace(FAULTS[0], **changes)])
    assert problem.startswith(f"{FAULTS[0].name}: ")
    assert words in problem


def test_two_faults_of_one_name_are_refused():
    assert TOOL.problems([FAULTS[0], FAULTS[0]])[0].endswith("two faults have this name")


def test_only_a_test_that_fails_has_caught_a_fault():
    assert TOOL.problem_with_end(1, "tests/test_a.py::test_b", "") == ""
    assert "survives" in TOOL.problem_with_end(0, "", "")
    assert "not done within" in TOOL.problem_with_end(None, "", "")
    for code in (1, 2, 4, 5, 9):  # nothing noted, interrupted, no such test, none found, another package
        assert f"ended with {code}" in TOOL.problem_with_end(code, "", "words")


def test_the_report_names_the_source_as_runs_do():
    source = TOOL.source_hash()
    assert source == package_source()
    one = TOOL.Outcome(FAULTS[0], "tests/a.py::test_b[x|y]", "", 1.25)
    rows = [TOOL.row_of(one), TOOL.row_of(dataclasses.replace(one, caught_by="", problem="it survives"))]
    assert rows[0].endswith("| `a.py::test_b[x&#124;y]` | 1.2 |")
    assert rows[1].endswith("| **it survives** | 1.2 |")
    report = TOOL.report_of(rows, source)
    assert "caught: 1 of 2" in report
    assert TOOL.rows_in(report, source) == {FAULTS[0].name: rows[1]}
    assert TOOL.rows_in(report, "another source") == {}


def test_a_fault_that_is_tried_again_renews_its_row_only(tmp_path, monkeypatch):
    monkeypatch.setattr(TOOL, "REPORT", tmp_path / "FAULTS.md")
    outcomes = [TOOL.Outcome(fault, "", "it survives", 1.0) for fault in FAULTS]
    TOOL.renew_report(outcomes[:1], "abc")
    assert not TOOL.REPORT.exists()  # a part of the list is no report
    TOOL.renew_report(outcomes, "abc")
    TOOL.renew_report([dataclasses.replace(outcomes[1], caught_by="tests/a.py::test_b", problem="")], "abc")
    assert f"caught: 1 of {len(FAULTS)}" in TOOL.REPORT.read_text()
