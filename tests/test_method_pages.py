"""The pages of the methods: one for each basic method, with tables that are those of the source text."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

import fedwinnow
from fedwinnow import catalogue
from fedwinnow.testing import toy_data

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs" / "methods").glob("*.md"))
TOOL = runpy.run_path(str(ROOT / "tools" / "write_method_tables.py"))
BASIC = {"fedavg", "fedprox", "sce", "gce", "mixup", "logit_adjustment", "oracle", "centralised", "local"}


def test_every_basic_method_has_a_page_and_every_page_a_method() -> None:
    names = {path.stem for path in PAGES} - {"index"}
    assert names >= BASIC
    assert names <= catalogue.entries("methods").keys()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_its_tables_are_current(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text == TOOL["current"](page), "run: python tools/write_method_tables.py"
    for marker in ("methods",) if page.stem == "index" else ("options", "exposure"):
        assert f"<!-- generated: {marker} -->" in text


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in (ROOT / "docs").rglob("*.md"):
        assert str(page.relative_to(ROOT / "docs")) in navigation


def test_the_page_of_own_methods_shows_the_example() -> None:
    shown = (ROOT / "docs" / "own-method.md").read_text(encoding="utf-8")
    example = (ROOT / "examples" / "my_method.py").read_text(encoding="utf-8")
    for line in example.partition("class Trim")[2].splitlines():
        if "citation" not in line:
            assert line.partition("  #")[0] in shown


def test_the_page_of_the_run_folder_names_every_file_and_key(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "run-folder.md").read_text(encoding="utf-8")
    result = fedwinnow.run(data=toy_data(), out=tmp_path, clients=3, rounds=1, epochs=1, validation=0.2)
    names = {path.name for path in tmp_path.iterdir()}
    names |= result.rounds[0].keys() | result.summary.keys() - {"detection"} | result.summary["cost"].keys()
    names |= {f"detection.{key}" for key in result.summary["detection"]} | result.summary["test"].keys()
    names |= json.loads((tmp_path / "environment.json").read_text()).keys()
    names |= set((tmp_path / "clients.csv").read_text().splitlines()[0].split(","))
    assert {name for name in names if f"`{name}`" not in page} == set()
