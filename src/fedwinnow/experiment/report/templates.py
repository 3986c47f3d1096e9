"""Pages from templates: every text that a user gave is escaped, and a name that is not there is an error."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedwinnow.experiment.report import numbers_in_words

if TYPE_CHECKING:
    from jinja2 import Environment

FILTERS = ("percent", "number", "whole", "size", "duration", "yes")


def render(template: Path, content: dict[str, Any]) -> str:
    """The page that a template gives; it may include the files beside it and those of this room."""
    return environment(template.parent).get_template(template.name).render(content)


@cache
def environment(folder: Path) -> Environment:
    """What reads the templates of a folder; kept, because compiling a template takes longer than filling it in."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader([folder, Path(__file__).parent]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {name: getattr(numbers_in_words, name) for name in FILTERS}
    return made
