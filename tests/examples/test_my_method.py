"""The example of an own method stands what every method must stand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

import pytest

import fedwinnow
from fedwinnow.cli import dispatch
from fedwinnow.errors import UsageError
from fedwinnow.testing import MethodTester, toy_data

FILE = Path(__file__).parents[2] / "examples" / "my_method.py"


class TestTrim(MethodTester):
    method: ClassVar[str] = f"{FILE}:warm_up=1"


def test_it_is_short() -> None:
    assert len(FILE.read_text(encoding="utf-8").splitlines()) < 40


def test_it_keeps_the_low_losses_after_the_warm_up(tmp_path: Path) -> None:
    settings = {"clients": 4, "participation": 1.0, "rounds": 3, "epochs": 1, "validation": 0.2}
    noise = "constant:rate=0.3"
    result = fedwinnow.run(data=toy_data(), out=tmp_path, method=f"{FILE}:warm_up=2", noise=noise, **settings)
    rows = result.rounds
    assert "label_precision" not in rows[1]
    assert rows[2]["label_precision"] > 0.8  # 0.7 of the labels are right; the kept half is cleaner
    assert rows[2]["backward_samples"] == 4 * 12  # 24 samples a site are trained on, half of them kept


def test_the_command_line_takes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = f"run --clients 5 --rounds 2 --epochs 1 --method {FILE}:warm_up=1,keep=0.5 --json --out {tmp_path / 'run'}"
    assert dispatch(words.split()) == 0
    assert json.loads(capsys.readouterr().out)["method"] == "trim:warm_up=1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = (", "does not import"),
        ("x = 1", "found: none"),
        ("from fedwinnow import Method\nclass Mine(Method):\n    pass", "Mine has no name"),
    ],
)
def test_a_file_that_is_no_method_is_explained(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(UsageError, match=message):
        fedwinnow.run(data=toy_data(), out=tmp_path / "run", method=f"{tmp_path / 'mine.py'}")
