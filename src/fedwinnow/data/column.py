"""A column of a table, and how it becomes numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Column:
    """One column of a table: a number that is standardised, or a category that becomes one column per value."""

    name: str
    kind: Literal["numeric", "categorical"]
    missing: bool  # whether a further column says that the value was missing
    mean: float = 0.0
    std: float = 1.0
    categories: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        return (1 if self.kind == "numeric" else len(self.categories)) + self.missing
