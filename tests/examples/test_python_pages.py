"""docs/python.md and docs/models.md: their code is run from top to bottom, and once more, as in a notebook."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", ["python.md", "models.md"])
def test_the_page_runs_twice(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 3
    blocks = [block.replace("fedwinnow.audit(", "fedwinnow.audit(rounds=2, encoder=None, ") for block in blocks]
    said = []
    for _ in range(2):
        known: dict[str, object] = {"__name__": "__main__"}
        for block in blocks:
            exec(compile(block, page, "exec"), known)
        said.append(capsys.readouterr().out)
    first, again = (set(text.splitlines()) for text in said)
    watched = {line for line in first - again if not re.match(r"[12] 0\.\d+ torch\.Size", line)}
    assert watched == set()  # the second time nothing is played, so the watcher is not told of rounds
    assert again <= first


def test_the_formulas_of_the_page_are_those_of_the_code():
    from math import cos, pi

    from fedwinnow.mathematics.optimizers import Sgd

    optimizer = Sgd(lr=1.0, schedule="cosine", warm_up=3, lowest=0.2)
    rounds, warm, lowest = 11, 3, 0.2
    for number in range(1, rounds + 1):
        cosine = lowest + (1 - lowest) * (1 + cos(pi * (number - warm - 1) / (rounds - warm))) / 2
        assert optimizer.share_at(number, rounds) == pytest.approx(number / 4 if number <= 3 else cosine)
