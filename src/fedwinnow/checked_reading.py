"""Reading files that we wrote and that somebody may have changed since: whatever is wrong is a sentence."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedwinnow.errors import DataError

# What a value must look like: a type or several, [form] for a list, {"key": form} for a table in which a key that ends
# in ? may be missing, {"*": form} for a table with any keys, Maybe(form) for null too. `float` takes whole numbers too;
# neither it nor `int` takes true for 1.
Form = Any
NAMES = {str: "a text", int: "a whole number", float: "a number", dict: "a table", list: "a list"}


@dataclass(frozen=True)
class Maybe:
    """A form, or null."""

    form: Form


def text_of(path: Path) -> str:
    """The text of a file."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as problem:
        raise DataError(f"{path}: not the text that was written here ({problem}). Restore the file.") from None
    except OSError as problem:
        raise DataError(f"{path}: cannot be read ({problem.strerror or problem}).") from None


def parsed(path: Path, text: str, form: Form = dict, where: str = "") -> Any:
    """JSON that must have a form; `where` says which part of the file it is."""
    place = f"{path}{where}"
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise DataError(f"{place}: not the JSON that was written here ({problem}). Restore the file.") from None
    demand(place, found, form)
    return found


def json_of(path: Path, form: Form = dict) -> Any:
    """The JSON of a file."""
    return parsed(path, text_of(path), form)


def demand(place: str, value: Any, form: Form, key: str = "") -> None:
    """Refuse a value that has another form, with the name of the first key that has."""
    if isinstance(form, Maybe):
        if value is not None:
            demand(place, value, form.form, key)
        return
    if isinstance(form, dict):
        demand(place, value, dict, key)
        for name, inner in form.items():
            if name == "*":
                for each, one in value.items():
                    demand(place, one, inner, f"{key}.{each}")
            elif name.rstrip("?") in value:
                demand(place, value[name.rstrip("?")], inner, f"{key}.{name.rstrip('?')}")
            elif not name.endswith("?"):
                raise DataError(f"{place}: '{f'{key}.{name}'[1:][:60]}' is missing. Restore the file.")
        return
    if isinstance(form, list):
        demand(place, value, list, key)
        for number, one in enumerate(value):
            demand(place, one, form[0], f"{key}.{number}")
        return
    kinds = form if isinstance(form, tuple) else (form,)
    if not any(is_kind(value, kind) for kind in kinds):
        allowed = " or ".join(NAMES[kind] for kind in kinds)
        what = f"'{key[1:][:60]}'" if key else "what is in it"
        raise DataError(f"{place}: {what} is {repr(value)[:40]}; needed: {allowed}. Restore the file.")


def is_kind(value: Any, kind: type) -> bool:
    """Whether a value is of a kind."""
    if kind in (int, float) and isinstance(value, bool):
        return False
    return isinstance(value, int | float) if kind is float else isinstance(value, kind)
