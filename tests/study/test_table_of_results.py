"""Tables of results/ that are made of the lines kept there."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from fedwinnow.study.table_writers import markdown

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
table_of_results = runpy.run_path(str(ROOT / "tools" / "table_of_results.py"))["table_of_results"]


@pytest.mark.parametrize(("show", "file"), [("last10", "features.md"), ("auroc", "features-auroc.md")])
def test_the_tables_are_those_of_the_lines(show: str, file: str) -> None:
    found = markdown(table_of_results([RESULTS / "features.toml", RESULTS / "features-steady.toml"], show))
    assert (RESULTS / file).read_text(encoding="utf-8") == found, f"run: tools/table_of_results.py --show {show}"


def test_a_seed_that_a_row_lacks_does_not_count(tmp_path: Path) -> None:
    for name in ("features.toml", "features-steady.toml", "features-steady.csv"):
        (tmp_path / name).write_text((RESULTS / name).read_text(encoding="utf-8"), encoding="utf-8")
    lines = (RESULTS / "features.csv").read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if not line.startswith("iid-people,gce,1,")]
    assert len(kept) == len(lines) - 1
    (tmp_path / "features.csv").write_text("\n".join(kept) + "\n", encoding="utf-8")
    table = table_of_results([tmp_path / "features.toml", tmp_path / "features-steady.toml"], "last10")
    seeds = {column.setting: {row: set(cell.values) for row, cell in column.cells.items()} for column in table.columns}
    assert 1 in seeds["iid-symmetric"]["fedavg"]
    assert all(1 not in found for found in seeds["iid-people"].values())
