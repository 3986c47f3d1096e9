"""Every benchmark of the folder runs, at its smallest size; what its numbers are is nobody's business here."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
from types import ModuleType

import benchmarks
import pytest
from benchmarks import results
from benchmarks.__main__ import main

MODULES: dict[str, ModuleType] = {
    module.name: importlib.import_module(f"benchmarks.{module.name}")
    for module in pkgutil.iter_modules(benchmarks.__path__)
    if module.name != "__main__"
}
MEASURED = sorted(name for name, module in MODULES.items() if hasattr(module, "run"))
PROGRAMS = sorted(name for name, module in MODULES.items() if hasattr(module, "main"))
HELPERS = {"attack_cases", "audits", "battery_cases", "contest", "naive", "peak", "results", "rivals"}


def rows(text: str) -> list[str]:
    """The lines of the Markdown tables below their heads."""
    lines = text.splitlines()
    rules = [number for number, line in enumerate(lines) if re.fullmatch(r"[|: -]+", line)]
    heads = {number - 1 for number in rules}
    return [line for number, line in enumerate(lines) if line.startswith("|") and number not in {*rules, *heads}]


def test_no_module_of_the_folder_is_forgotten():
    assert set(MODULES) == {*MEASURED, *PROGRAMS, *HELPERS}
    assert not HELPERS & {*MEASURED, *PROGRAMS}
    assert len(MEASURED) >= 6
    assert len(PROGRAMS) >= 3


# These belong to the slow tests.
LONG = (
    "loky",
    "many_sites",
    "network",
    "audit_features",
    "audit_rivals",
    "battery_prior",
    "does_it_help",
    "head_input",
)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in MEASURED]
)
def test_a_benchmark_runs(name, capsys, monkeypatch):
    if name in ("many_sites", "network") and importlib.util.find_spec("flwr") is None:
        pytest.skip("needs the extra 'flower'")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # processes that wait for each other cost nothing then
    monkeypatch.setattr(results, "RESULTS", None)  # nothing is kept
    main([name, "--smallest"])
    found = rows(capsys.readouterr().out)
    assert found
    assert all(re.search(r"\d", row) for row in found)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in PROGRAMS]
)
def test_a_program_runs(name, capsys):
    words = ["--cleanlab-rates"] if name == "audit_compare" else []
    MODULES[name].main(["--smallest", *words])
    found = [row for row in rows(capsys.readouterr().out) if "| not measured |" not in row]
    assert found
    assert all(re.search(r"\d", row) for row in found)


def test_the_comparison_with_cleanlab_runs(capsys):
    pytest.importorskip("cleanlab", reason="needs the extra 'audit-compare'")
    MODULES["audit_compare"].main(["--smallest"])
    assert "cleanlab, pooled" in capsys.readouterr().out


def test_the_least_work_is_never_kept(capsys):
    with pytest.raises(SystemExit):
        main(["--smallest", "--write"])
    assert "exclude each other" in capsys.readouterr().err


def test_a_section_replaces_its_forerunner_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "RESULTS", tmp_path / "RESULTS.md")
    (tmp_path / "RESULTS.md").write_text("# Old\n\n## gone\n\n1\n\n## small\n\n2\n\n## engine\n\n3\n", encoding="utf-8")
    results.write_section("small", "4", ["engine", "small", "start"])
    text = (tmp_path / "RESULTS.md").read_text(encoding="utf-8")
    assert text == results.PREFACE + "\n## engine\n\n3\n\n## small\n\n4\n"


@pytest.mark.parametrize(("ratio", "word"), [(2.5, "reached"), (2.499, "missed")])
def test_an_aim_is_judged_by_the_number(ratio, word):
    assert results.verdict(ratio, 2.5) == word
