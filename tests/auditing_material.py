"""Patients of three hospitals, for tests of the audit."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

SCRIPT = "<script>alert(1)</script>"
QUICK = {"rounds": 6, "epochs": 3, "participation": 1.0, "optimizer": "sgd:lr=0.1", "batch_size": 16}
SPEC = "csv:path={path},label=diagnosis,id=patient,ignore=truth"


def write_patients(path: Path, rows: int = 300, wrong: float = 0.12) -> Path:
    """Ill patients are older and have a higher pressure; a label named like a script is among the classes."""
    luck = np.random.RandomState(3)
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["patient", "diagnosis", "hospital", "age", "pressure", "note", "truth"])
        for number in range(rows):
            truth = (SCRIPT, "well")[number % 2]
            given = truth if luck.rand() > wrong else ("well", SCRIPT)[number % 2]
            old = truth == SCRIPT
            site = ("north", "south", "a/../<b>east")[number % 3]
            # Some are easy and some are hard to tell: where all were equally easy, nobody could know which are wrong.
            clear = luck.uniform(1, 25) * (1 if old else -1)
            age, pressure = luck.normal(48 + clear, 3), luck.normal(135 + clear, 3)
            writer.writerow([f"p{number}", given, site, f"{age:.1f}", f"{pressure:.0f}", "a, note", truth])
    return path


def lines(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))
