"""The generated pages: the reference is that of the docstrings, the exposure table that of the source text."""

from __future__ import annotations

import runpy
from pathlib import Path

import fedwinnow
from fedwinnow import catalogue

ROOT = Path(__file__).parent.parent
TOOL = runpy.run_path(str(ROOT / "tools" / "write_reference.py"))
REFERENCE = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
EXPOSURE = (ROOT / "docs" / "exposure.md").read_text(encoding="utf-8")


def test_the_reference_is_current() -> None:
    assert TOOL["reference"]() == REFERENCE, "run: python tools/write_reference.py"


def test_the_reference_has_everything_that_the_package_offers() -> None:
    for name in set(fedwinnow.__all__) - {"__version__"}:
        assert f"\n### {name}\n" in REFERENCE


def test_the_exposure_table_is_current() -> None:
    assert "<!-- generated: exposure -->" in EXPOSURE
    assert TOOL["exposure_page"]() == EXPOSURE, "run: python tools/write_reference.py"


def test_every_method_and_every_key_is_in_the_exposure_table() -> None:
    rows = {line.split("|")[1].strip(): line for line in EXPOSURE.splitlines() if line.startswith("| ")}
    for name, entry in catalogue.entries("methods").items():
        row = rows.get(name) or rows[f"[{name}](methods/{name}.md)"]
        assert all(f"`{key}`" in row for key in entry.facts["exposes"])


def test_a_value_per_sample_is_told_apart() -> None:
    row = next(line for line in EXPOSURE.splitlines() if line.startswith("| [fedgr]"))
    assert row.split("|")[4].strip() == "`sample_loss`"
