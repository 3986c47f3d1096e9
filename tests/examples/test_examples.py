"""The examples run as a user runs them, and reach what they promise."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import fedwinnow

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Run a script in an empty folder; what it printed."""
    monkeypatch.chdir(tmp_path)

    def run(name: str, *words: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, *words])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run


def test_hospitals(play, tmp_path: Path) -> None:
    said = play("hospital_csv/hospitals.py")
    before, after = map(int, re.findall(r"wrong diagnoses: (\d+) before, (\d+) after", said)[0])
    assert before == 66
    assert after < before / 3
    assert (tmp_path / "hospital-example" / "audit" / "east" / "report.html").exists()


@pytest.mark.slow
def test_shapes(play, tmp_path: Path) -> None:
    said = play("image_folder/shapes.py")
    wrong, moved, rightly = map(int, re.findall(r"(\d+) pictures were.*; (\d+) were moved, (\d+) of them", said)[0])
    assert wrong == 39
    assert rightly > wrong / 2
    assert rightly > 0.8 * moved
    assert len(list((tmp_path / "shapes-example" / "corrected").glob("*/*.png"))) == 360


@pytest.mark.slow  # the tests of the deployment play three sites too
def test_three_sites(play, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flwr", reason="the extra 'flower' is not installed: pip install '.[flower]'")
    monkeypatch.setenv("PYTHONPATH", str(Path(fedwinnow.__file__).parents[1]))  # its processes import what we test
    said = play("flower_three_sites/three_sites.py")
    assert "3 of 3 sites are there: east, north, south" in said
    assert float(re.findall(r"the model reads ([\d.]+)% of", said)[0]) > 80
    left = re.findall(r"^  (\w+) +(\d+) x weights \(19,240 bytes each\), (.*)$", said, re.MULTILINE)
    assert [(site, times) for site, times, _ in left] == [("north", "8"), ("south", "8"), ("east", "8")]
    assert all("x statistics" in rest for _, _, rest in left)
    found = [
        tuple(map(int, numbers))
        for numbers in re.findall(r"400 labels, +(\d+) of them wrong: +(\d+) of the first 40", said)
    ]
    assert [wrong for wrong, _ in found] == [0, 0, 120]
    assert found[2][1] > 36


def test_three_sites_leaves_no_process_behind() -> None:
    script = runpy.run_path(str(EXAMPLES / "flower_three_sites/three_sites.py"))
    started = {}

    def interrupted() -> None:
        with script["processes"]() as processes:
            processes["sleeper"] = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            started.update(processes)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert started["sleeper"].poll() is not None


def test_people_stops_kindly_without_the_data(play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDWINNOW_DATA", raising=False)
    monkeypatch.setenv("FEDWINNOW_CACHE", os.fspath(tmp_path / "cache"))
    said = play("cifar10n/people.py")
    assert "stops here" in said
    assert "FEDWINNOW_DATA" in said
    assert not (tmp_path / "cifar10n-example").exists()


@pytest.mark.real
def test_people(play, tmp_path: Path) -> None:
    if not os.environ.get("FEDWINNOW_DATA"):
        pytest.skip("FEDWINNOW_DATA names no folder with CIFAR-10 and CIFAR-10N")
    said = play("cifar10n/people.py", "--train", "200", "--rounds", "1")
    if "stops here" in said:
        pytest.skip(said)
    assert said.count("last-10 accuracy") == 2
    assert (tmp_path / "cifar10n-example" / "feddiv" / "report.html").exists()


def test_first_steps(play, tmp_path: Path) -> None:
    said = play("notebooks/first_steps.py")
    assert "client-7" in said
    assert "round 6: " in said
    assert (tmp_path / said.split()[-1]).name == "report.html"
    assert (tmp_path / said.split()[-1]).exists()
    stamp = (tmp_path / "notebook" / "fedavg" / "summary.json").stat().st_mtime_ns
    assert play("notebooks/first_steps.py") == said  # a second time, as when all cells are run again
    assert (tmp_path / "notebook" / "fedavg" / "summary.json").stat().st_mtime_ns == stamp


def test_compare_methods(play, tmp_path: Path) -> None:
    said = play("notebooks/compare_methods.py")
    assert "18 runs, 0 failed" in said
    assert "MixUp" in said
    assert "over n = 3 seeds" in said
    assert play("notebooks/compare_methods.py") == said
    assert "\\begin{tabular}" in (tmp_path / "notebook" / "table.tex").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", sorted((EXAMPLES / "notebooks").glob("*.py")), ids=lambda path: path.stem)
def test_a_notebook_is_one_that_jupytext_opens(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# ---\n# jupyter:\n")
    assert "format_name: percent" in text
    cells = re.split(r"^# %%", text, flags=re.MULTILINE)[1:]
    kinds = ["markdown" if cell.startswith(" [markdown]") else "code" for cell in cells]
    assert kinds[0] == "markdown"
    assert kinds.count("code") >= 4
    for cell, kind in zip(cells, kinds, strict=True):
        if kind == "markdown":
            assert all(line.startswith("#") or not line for line in cell.splitlines()[1:])
