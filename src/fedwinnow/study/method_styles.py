"""The colour, dashes and mark of every method, the same in all figures and on the board."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256

from fedwinnow.method_names import TITLES, method_of

# The first six are Okabe and Ito's. Each further one is the colour that is farthest from those before it, in CIELAB, as
# people with usual vision, without red cones and without green cones see them; neon, very light and very dark ones are
# left out. Nobody can tell forty colours apart, so dashes and marks differ as well.
# fmt: off
COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9", "#961E1E", "#0078F0", "#5AC369",
    "#2D5A5A", "#FF96A5", "#4B4B78", "#004BB4", "#5A96F0", "#C34B2D", "#2D964B", "#3CC3D2", "#3C694B",
    "#0F8778", "#004B96", "#E1963C", "#5A6987", "#5AB478", "#1E69C3", "#9687C3", "#A51E00", "#A52D3C",
    "#5AC3A5", "#F05A4B", "#009696", "#0F6996", "#96C35A", "#1E5A2D", "#69782D", "#6987D2", "#B44B00",
    "#4BA54B", "#4BA5B4", "#4BB4FF", "#1E5A69", "#2D5AD2", "#3C87F0", "#87961E", "#0F5A96",
)
# fmt: on
DASHES = ("-", "--", "-.", ":")
MARKS = "osD^vP*X"


@dataclass(frozen=True)
class MethodStyle:
    """How one method is drawn."""

    colour: str
    dashes: str
    mark: str


def style_number(number: int) -> MethodStyle:
    """The style of a place in the list of colours; up to 32 neighbours have different pairs of dashes and marks."""
    rows = len(DASHES) * len(MARKS)
    place = number % rows
    dashes = DASHES[place % len(DASHES)]
    return MethodStyle(COLOURS[number % len(COLOURS)], dashes, MARKS[(place + place // len(MARKS)) % len(MARKS)])


def method_styles(rows: Iterable[str]) -> dict[str, MethodStyle]:
    """A style for every row of a picture; no two rows share one, unless there are more rows than colours.

    A method of fedwinnow has its own style wherever it is drawn. If several rows of a picture are variants of one
    method, the plain one keeps the style and every other gets one by a hash of its name; so does a method of one's own.
    Only if that style is taken in this picture, the next free one is used.
    """
    names = list(dict.fromkeys(rows))
    numbers: dict[str, int] = {}
    known = list(TITLES)
    for name in sorted(names, key=lambda row: (row != method_of(row), row)):
        method = method_of(name)
        alone = sum(method_of(other) == method for other in names) == 1
        if method in TITLES and (alone or name == method) and known.index(method) not in numbers.values():
            numbers[name] = known.index(method)
    for name in sorted(set(names) - numbers.keys()):
        first = int(sha256(name.encode()).hexdigest()[:8], 16) % len(COLOURS)
        free = [(first + step) % len(COLOURS) for step in range(len(COLOURS))]
        numbers[name] = next((number for number in free if number not in numbers.values()), first)
    return {name: style_number(numbers[name]) for name in names}
