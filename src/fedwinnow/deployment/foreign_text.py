"""Text that crosses between machines: what others say is shown without harm, and what they are told is chosen."""

from __future__ import annotations

import unicodedata
from typing import TypeVar

from fedwinnow.errors import FedwinnowError

MOST = 300  # letters of one line from another machine
MOST_LINES, MOST_OF_LINE = 200, 2000  # of what this machine says itself, which may repeat what another one sent
Problem = TypeVar("Problem", bound=FedwinnowError)


def printable(text: str) -> str:
    """The text with a blank for everything that steers a terminal or turns the direction of writing."""
    return "".join(" " if is_control(letter) else letter for letter in text)


def is_control(letter: str) -> bool:
    """Whether a letter is not there to be read: control, format, surrogate, private, or a line of its own."""
    kind = unicodedata.category(letter)
    return kind[0] == "C" or kind in ("Zl", "Zp")


def one_line(text: object, most: int = MOST) -> str:
    """What another machine said, as it may reach a terminal or a file: one line, nothing but letters, not long."""
    words = " ".join(printable(str(text)[: 4 * most]).split())
    return words if len(words) <= most else words[: most - 3] + "..."


def harmless(text: str) -> str:
    """The same for many lines of our own: they keep their order and indentation."""
    lines = text.split("\n")[:MOST_LINES]
    return "\n".join(printable(line[:MOST_OF_LINE]).rstrip() for line in lines)


def for_others(problem: Problem, words: str = "") -> Problem:
    """Mark an error as one that other machines may be told, in these words or in its own."""
    problem.told = words or str(problem)
    return problem
