"""Columns of yes and no, which hospitals write in many ways: a schema takes them for the same two values."""

from __future__ import annotations

from collections.abc import Iterable

# The words for no and for yes that go together. A column is of one of these; 0 and 1 may stand beside any of them.
PAIRS = (
    ({"false", "f"}, {"true", "t"}),
    ({"no", "n"}, {"yes", "y"}),
    ({"nein", "n"}, {"ja", "j"}),
    ({"falsch", "f"}, {"wahr", "w"}),
    ({"non", "n", "faux"}, {"oui", "o", "vrai"}),
    ({"no", "n", "falso"}, {"si", "sí", "s", "verdadero", "vero", "sì"}),
    ({"nee", "n"}, {"ja", "j"}),
    ({"nej", "n"}, {"ja", "j"}),
    ({"não", "nao", "n", "falso"}, {"sim", "s", "verdadeiro"}),
    ({"nie", "n"}, {"tak", "t"}),
)
DIGITS = ({"0"}, {"1"})


def truths(cells: Iterable[str]) -> dict[str, bool] | None:
    """What each of these different cells says; None where they are not all words for yes and no of one language."""
    plain = {cell: cell.casefold() for cell in cells}
    words = set(plain.values()) - {"0", "1"}
    for no, yes in PAIRS:
        if words and words <= no | yes:
            return {cell: word in yes | DIGITS[1] for cell, word in plain.items()}
    return None
