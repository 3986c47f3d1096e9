"""A column of a table, and how it becomes numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Part = Literal["", "day", "month", "weekday", "hour"]
LATER = ("part", "size", "encoder", "hash", "unit")  # fields that schemas of earlier versions do not have


@dataclass(frozen=True)
class Column:
    """One column of a table, or one part of a date in it.

    A number is standardised; a category becomes one column per value; of ordered categories the position is
    standardised; a free text becomes the numbers that an encoder gives, all on one scale.
    """

    name: str
    kind: Literal["numeric", "categorical", "ordered", "text"]
    missing: bool  # whether a further column says that the value was missing
    mean: float = 0.0
    std: float = 1.0
    categories: tuple[str, ...] = ()
    part: Part = ""  # of a date or a time: which number
    size: int = 1  # of a text: how many numbers its encoder gives
    encoder: str = ""  # of a text
    hash: str = ""  # of the encoder's weights
    unit: str = ""  # that the cells of a number name

    @property
    def width(self) -> int:
        """How many numbers of a model's input it becomes."""
        return (len(self.categories) if self.kind == "categorical" else self.size) + self.missing

    @property
    def title(self) -> str:
        """The name, with the part of a date; no two columns of a schema share it."""
        return f"{self.name} ({self.part})" if self.part else self.name

    def as_table(self) -> dict[str, Any]:
        """Plain values, ready for JSON, without what only dates and texts have where it is neither."""
        plain = asdict(self) | {"categories": list(self.categories)}
        usual = {one: Column.__dataclass_fields__[one].default for one in LATER}
        return {name: value for name, value in plain.items() if name not in usual or value != usual[name]}
