"""The tables of the study: ranks, differences and intervals by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.protocol_report import (
    OURS,
    PLAIN,
    TRUTH,
    aims,
    differences,
    interval,
    lines_of,
    report,
    values_of,
    whole,
)

HEAD = "scene,method,seed,last10,last10_balanced,auroc,average_precision\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "runs.csv"
    path.write_text(HEAD + text, encoding="utf-8")
    return path


RUNS = f"""one-heavy,{OURS},0,0.8,0.1,0.9,0.5
one-heavy,{OURS},1,0.6,0.1,0.7,0.5
one-heavy,{PLAIN},0,0.5,0.1,0.6,0.5
one-heavy,{PLAIN},1,0.5,0.1,0.6,0.5
one-symmetric,{OURS},0,0.7,0.1,0.9,0.5
one-symmetric,{PLAIN},0,0.71,0.1,0.6,0.5
one-pair,{OURS},0,0.9,0.1,0.9,0.5
hypothyroid-heavy,{OURS},0,0.9,0.3,,
hypothyroid-heavy,{PLAIN},0,0.9,0.4,,
"""


def test_only_seeds_count_at_which_every_row_has_a_run(tmp_path):
    lines = lines_of(written(tmp_path, RUNS))
    seeds = whole(lines)
    assert seeds == {("one", "heavy"): ["0", "1"], ("one", "symmetric"): ["0"], ("hypothyroid", "heavy"): ["0"]}
    accuracy = values_of(lines, seeds, "last10")
    assert accuracy[OURS] == pytest.approx(
        {("hypothyroid", "heavy"): 0.3, ("one", "heavy"): 0.7, ("one", "symmetric"): 0.7}
    )
    # without a verdict, for example where nothing is wrong, the column is left out
    assert set(values_of(lines, seeds, "auroc")[OURS]) == {("one", "heavy"), ("one", "symmetric")}


def test_the_interval_by_hand():
    middle, half = interval([1.0, 2.0, 3.0])
    assert middle == 2
    assert half == pytest.approx(4.3027 / 3**0.5, rel=1e-4)  # t with two degrees of freedom, deviation 1
    assert interval([5.0]) == (5, None)


def test_differences_and_aims_by_hand(tmp_path):
    lines = lines_of(written(tmp_path, RUNS))
    accuracy = values_of(lines, whole(lines), "last10")
    assert "| fedavg:steady=0.8 | -10.0 | +9.5 ± 133.4 | 0 of 2 | – |" in differences(accuracy, OURS)
    found = aims(accuracy, {"accuracy": accuracy}, OURS)
    assert "Average rank by accuracy: 1.50" in found
    assert "-10.0 points, on hypothyroid-heavy" in found


def test_a_p_value_needs_six_sets_and_the_oracle_has_no_rank(tmp_path):
    def of(count: int) -> str:
        rows = ((OURS, 0.8), (PLAIN, 0.7), ("gce:steady=0.8", 0.6), (TRUTH, 0.82))
        text = "".join(
            f"set{place}-symmetric,{row},0,{value + place / 100},0.1,0.9,0.5\n"
            for place in range(count)
            for row, value in rows
        )
        return report(written(tmp_path, text))

    assert "| 0 of 5 | – |" in of(5)
    six = of(6)
    # all six ahead: 2 / 2⁶ for each of two rivals, doubled by Holm for the smaller
    assert six.count("| 0 of 6 | 0.062 |") == 2
    assert "| 82.0 | 83.0 | 84.0 | 85.0 | 86.0 | 87.0 | – |" in six
    assert "Points below the oracle with 40 % noise (aim: 3; cancer: 30 %): set0 2.0, set1 2.0" in six
