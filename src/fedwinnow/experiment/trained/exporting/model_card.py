"""README.md of an export: a model card in the form of Hugging Face, in plain words."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedwinnow.data.input_form import InputForm
from fedwinnow.experiment.report.templates import percent, size
from fedwinnow.experiment.trained.exporting.front_matter import front_matter
from fedwinnow.experiment.trained.exporting.input_description import tensor_of

if TYPE_CHECKING:
    from jinja2 import Template

TEMPLATE = Path(__file__).with_name("model_card.md")
SHOWN = 30  # classes, columns or categories of a column


def card(facts: dict[str, Any], form: InputForm) -> str:
    """The whole card."""
    facts = {"encoder": None} | facts
    tensor = tensor_of(form, facts["encoder"])
    shape = f"({', '.join(map(str, tensor['shape']))}{',' if len(tensor['shape']) == 1 else ''})"
    shown = {"form": form, "tensor": tensor | {"shape": shape}, "limit": SHOWN}
    return front_matter(facts, form) + "\n" + template().render(facts | shown)


def code(text: object) -> str:
    """A user's text as code in Markdown, safe in a table too."""
    plain = " ".join(str(text).split()).replace("`", "'").replace("|", "\\|")
    return f"`{plain}`" if plain else "(empty)"


def listed(names: Any) -> str:
    """Names as code, the first ones of many."""
    every = list(names)
    more = f" and {len(every) - SHOWN} more, see preprocessing.json" if len(every) > SHOWN else ""
    return ", ".join(map(code, every[:SHOWN])) + more


def places(names: Any) -> str:
    """Categories with their positions, the first ones of many."""
    every = list(names)
    more = f", and {len(every) - SHOWN} more, see preprocessing.json" if len(every) > SHOWN else ""
    return ", ".join(f"{code(name)} = {place}" for place, name in enumerate(every[:SHOWN])) + more


def counted(value: int) -> str:
    """A whole number with commas."""
    return f"{value:,}"


@cache
def template() -> Template:
    """The template of the card; an unknown name in it is an error."""
    from jinja2 import Environment, StrictUndefined

    made = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    filters = (code, listed, places, counted, percent, size)
    made.filters |= {function.__name__: function for function in filters} | {"json": json.dumps}
    return made.from_string(TEMPLATE.read_text(encoding="utf-8"))
