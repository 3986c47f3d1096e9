"""decisions.csv: what people decided about labels; the file is complete at every moment, also when several people work
on it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from fedwinnow.auditing.spreadsheet_files import read_table, table_text
from fedwinnow.errors import DataError, RunError, UsageError
from fedwinnow.files import sweep, try_lock, write_text

HEADER = ("id", "reviewer", "decision", "label", "time")
ACCEPT, KEEP, OTHER, SKIP = "accept", "keep", "other", "skip"
DECISIONS = (ACCEPT, KEEP, OTHER, SKIP)
PATIENCE = 10.0  # seconds to wait while another program is saving


@dataclass(frozen=True)
class Decision:
    """What one person decided about one label; the label is empty where the person skipped it."""

    id: str
    reviewer: str
    decision: str
    label: str
    time: str

    @classmethod
    def now(cls, sample: str, reviewer: str, decision: str, label: str) -> Decision:
        """A decision made at this moment."""
        return cls(sample, reviewer, decision, label, datetime.now(UTC).isoformat(timespec="seconds"))


Decided = dict[tuple[str, str], Decision]  # by sample and reviewer


def read_decisions(folder: Path) -> Decided:
    """All decisions in a site's folder; empty before the first one."""
    path = folder / "decisions.csv"
    if not path.exists():
        return {}
    rows = read_table(path, HEADER)
    found = {}
    for number, row in enumerate(rows, start=1):
        if set(row) != set(HEADER) or row["decision"] not in DECISIONS:
            raise DataError(
                f"{path}, row {number} (line {number + 1}): not a decision. Needed: {', '.join(HEADER)}, with a "
                f"decision of {', '.join(DECISIONS)}."
            )
        found[row["id"], row["reviewer"]] = Decision(**row)
    return found


def save_decision(folder: Path, sample: str, reviewer: str, decision: Decision | None) -> Decision | None:
    """Save one decision, or remove it (None); returns the decision that was there before."""
    with alone(folder):
        decided = read_decisions(folder)
        before = decided.pop((sample, reviewer), None)
        if decision is not None:
            decided[sample, reviewer] = decision
        lines = ([getattr(one, name) for name in HEADER] for one in decided.values())
        try:
            write_text(folder / "decisions.csv", table_text(HEADER, lines))
        except OSError as problem:
            raise RunError(f"{folder / 'decisions.csv'}: cannot be written ({problem.strerror}).") from None
    return before


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Lock the file, so that one program at a time reads and writes it."""
    try:
        lock = (folder / ".decisions.lock").open("a+")
    except OSError as problem:
        raise RunError(f"{folder}: no decision can be saved here ({problem.strerror}).") from None
    with lock as stream:
        until = time.monotonic() + PATIENCE
        while not try_lock(stream.fileno()):
            if time.monotonic() > until:
                raise RunError(f"{folder}: another program keeps decisions.csv locked.")
            time.sleep(0.01)
        yield


def sweep_decisions(folder: Path) -> None:
    """Delete the temporary file of a review that was killed while it saved."""
    with alone(folder):
        sweep(folder, "decisions.csv")


def reviewers(decided: Decided) -> list[str]:
    """Everybody who decided something."""
    return sorted({reviewer for _, reviewer in decided})


def labels_by_sample(decided: Decided, among: Iterable[str] | None = None) -> dict[str, dict[str, str]]:
    """sample -> reviewer -> label, without skipped samples."""
    wanted = None if among is None else set(among)
    found: dict[str, dict[str, str]] = {}
    for (sample, reviewer), one in decided.items():
        if one.decision != SKIP and (wanted is None or reviewer in wanted):
            found.setdefault(sample, {})[reviewer] = one.label
    return found


def agreement(decided: Decided) -> dict[str, float | int] | None:
    """On how many labels reviewers agree, and Cohen's kappa, which is 0 for agreement by chance."""
    names = reviewers(decided)
    if len(names) < 2:
        return None
    pairs = [
        (mine, labels[second])
        for labels in labels_by_sample(decided).values()
        for place, first in enumerate(names)
        for second in names[place + 1 :]
        if (mine := labels.get(first)) is not None and second in labels
    ]
    if not pairs:
        return None
    same = sum(one == two for one, two in pairs) / len(pairs)
    ones, twos = (Counter(side) for side in zip(*pairs, strict=True))
    chance = sum(ones[label] * twos[label] for label in ones) / len(pairs) ** 2
    kappa = (same - chance) / (1 - chance) if chance < 1 else 1.0
    return {"both": len(pairs), "same": same, "kappa": kappa}


def check_reviewer(name: str) -> str:
    """The name, stripped; refuses names that do not fit into a cell or onto a page."""
    if not name.strip() or len(name) > 60 or any(ord(letter) < 32 or 0xD800 <= ord(letter) < 0xE000 for letter in name):
        raise UsageError(f"--reviewer {name!r} was given; allowed: a name of 1 to 60 letters.")
    return name.strip()
