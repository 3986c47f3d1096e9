"""A curve in percent of its frame, so that lines stretch with the page while words keep their size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

LARGEST = 600  # points in one line; more would not be seen


@dataclass(frozen=True)
class Mark:
    """A dot with a name."""

    x: float
    y: float
    name: str
    value: float
    round: int


@dataclass(frozen=True)
class Curve:
    """The accuracy of every measured round, with last, best and the mean of the last ten."""

    points: str  # for an SVG polyline in a frame of 100 by 100
    first: int
    last: int
    marks: tuple[Mark, ...]
    mean_from: float
    mean_to: float
    mean_y: float
    mean: float
    averaged: int  # rounds in that mean: ten, or as many as there are


def curve_of(rounds: list[dict[str, Any]], summary: dict[str, Any]) -> Curve | None:
    """The curve of a run; None where nothing was measured."""
    rows = [(int(row["round"]), float(row["accuracy"])) for row in rounds if row.get("accuracy") is not None]
    if not rows:
        return None
    first, last = rows[0][0], rows[-1][0]

    def x(round_number: int) -> float:
        return 50.0 if last == first else 100 * (round_number - first) / (last - first)

    best = max(rows, key=lambda row: row[1])
    marks = [
        Mark(x(number), 100 * (1 - value), name, value, number)
        for name, (number, value) in (("best", best), ("last", rows[-1]))
    ]
    step = -(-len(rows) // LARGEST)
    drawn = [*rows[::step], rows[-1]]
    ten = rows[-10:]
    mean = (summary.get("last10") or {}).get("accuracy") or sum(value for _, value in ten) / len(ten)
    return Curve(
        points=" ".join(f"{x(number):.2f},{100 * (1 - value):.2f}" for number, value in drawn),
        first=first,
        last=last,
        marks=tuple(marks),
        mean_from=x(ten[0][0]),
        mean_to=x(ten[-1][0]),
        mean_y=100 * (1 - mean),
        mean=mean,
        averaged=len(ten),
    )
