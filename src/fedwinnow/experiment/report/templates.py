"""Pages from templates, with numbers in readable form; user text is escaped, and an unknown name is an error."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment


# what a key exposes -> what its receiver can learn from it
LEARNS = {
    "masked": "nothing by itself: only the sum over sites tells something",
    "model": "the trained model, and what can be inferred from one",
    "client": "something about the site as a whole",
    "sample": "something about single samples",
}

# who receives a key -> in words
RECEIVERS = {("server",): "the server", ("server", "sites"): "the server and other sites"}


def percent(share: float | None) -> str:
    """A share between 0 and 1, in per cent."""
    return "–" if share is None or share != share else f"{100 * share:.1f} %"


def number(value: float | None) -> str:
    """A plain number with three digits after the point."""
    return "–" if value is None or value != value else f"{value:.3f}"


def whole(value: float | None) -> str:
    """A whole number in groups of three digits."""
    return "–" if value is None else f"{int(value):,}".replace(",", "\u202f")


def size(count: float | None) -> str:
    """Bytes in the unit that fits."""
    if count is None:
        return "–"
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{int(count)} bytes"


def duration(seconds: float | None) -> str:
    """Seconds, minutes or hours."""
    if seconds is None:
        return "–"
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = seconds / 60
    return f"{minutes:.1f} min" if minutes < 120 else f"{minutes / 60:.1f} h"


def render(template: Path, content: dict[str, Any]) -> str:
    """The page of a template, which may include files from its own folder and from this one."""
    return environment(template.parent).get_template(template.name).render(content)


@cache
def environment(folder: Path) -> Environment:
    """The template environment of a folder; cached, because compiling a template is slow."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader([folder, Path(__file__).parent]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {function.__name__: function for function in (percent, number, whole, size, duration)}
    return made
