"""Text from other machines, made harmless before it is shown."""

from __future__ import annotations

import unicodedata

MOST = 300  # letters of a line from another machine
MOST_LINES, MOST_OF_LINE = 200, 2000  # of this machine's own text, which may quote another machine


def printable(text: str) -> str:
    """The text with a blank in place of every character that controls a terminal or the direction of writing."""
    return "".join(" " if is_control(letter) else letter for letter in text)


def is_control(letter: str) -> bool:
    """Whether a character is invisible: control, format, surrogate, private use, or a line separator."""
    kind = unicodedata.category(letter)
    return kind[0] == "C" or kind in ("Zl", "Zp")


def one_line(text: object, most: int = MOST) -> str:
    """Text of another machine, safe for a terminal or a file: one short line without control characters."""
    words = " ".join(printable(str(text)[: 4 * most]).split())
    return words if len(words) <= most else words[: most - 3] + "..."


def harmless(text: str) -> str:
    """Several lines of this machine's own text without control characters; order and indentation stay."""
    lines = text.split("\n")[:MOST_LINES]
    return "\n".join(printable(line[:MOST_OF_LINE]).rstrip() for line in lines)
