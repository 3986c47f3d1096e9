"""Checks of settings from another machine: they may name parts that are installed here, but no file."""

from __future__ import annotations

import contextlib
from typing import Any

from fedwinnow import catalogue
from fedwinnow.all_settings import is_number
from fedwinnow.deployment.error_codes import for_others
from fedwinnow.deployment.foreign_text import one_line
from fedwinnow.errors import UsageError
from fedwinnow.models.make_model import in_turn
from fedwinnow.options import file_options, format_spec, parse_spec
from fedwinnow.setting import flag_of

FAMILY_OF = {"method": "methods", "model": "models", "optimizer": "optimizers", "public": "data", "encoder": "encoders"}


def refuse_files(settings: dict[str, Any]) -> None:
    """Refuse parts that are not known here by name, and options that name a file, also in parts within parts."""
    for name, value in settings.items():
        for text in texts_in(value):
            if ".py" in text or "/" in text or "\\" in text or text.startswith("~"):
                raise file_named(flag_of(name), one_line(text, 80))
        if name in FAMILY_OF:
            for spec in in_turn(value) if name == "model" else [value]:
                if name != "public" or not is_number(spec):
                    check_part(FAMILY_OF[name], spec, flag_of(name))


def check_part(family: str, spec: Any, flag: str) -> None:
    """Check one part, and the parts that its options name."""
    kind = catalogue.FAMILIES[family][0]
    name, values = catalogue.split(family, spec)
    entry = catalogue.entries(family).get(name)
    if entry is None:
        raise for_others(
            UsageError(
                f"{flag}: no {kind} of the name '{one_line(name, 80)}' is known here. Over a network, your own {kind} "
                f"must be installed as a package on every machine (docs/own-method.md) and be given by its name."
            ),
            "settings",
        )
    files = file_options(entry.load())
    for key, value in values.items():
        if key in files and not is_none(value):
            raise file_named(flag, f"{name}:{key}={one_line(value, 80)}")
        if isinstance(value, dict | list):
            raise for_others(
                UsageError(f"{flag}: {name}:{one_line(key, 80)} is a table or list; allowed: one value."), "settings"
            )
        if isinstance(value, str):
            check_within(value, flag)


def check_within(text: str, flag: str) -> None:
    """Check a text that may be a part within a part: a loss, an aggregator, a model."""
    name = ""
    with contextlib.suppress(UsageError):  # then it is not a part
        name, _ = parse_spec(text)
    for family in catalogue.FAMILIES:
        if name in catalogue.entries(family):
            check_part(family, text, flag)


def is_none(value: Any) -> bool:
    """Whether an option is not set."""
    return value is None or (isinstance(value, str) and value.lower() == "none")


def file_named(flag: str, what: str) -> UsageError:
    """The error for a setting by which the coordinator would make a site open a file."""
    return for_others(
        UsageError(
            f"{flag} names a file or path: {what}. Over a network a site opens no file and runs no code that others "
            f"name; install methods and models as a package on every machine (docs/own-method.md)."
        ),
        "settings",
    )


def without_files(spec: Any) -> Any:
    """A model's spec without the file of its initial weights, which are sent themselves with the first question."""
    with contextlib.suppress(UsageError):
        name, values = parse_spec(spec) if isinstance(spec, str) else ("", {})
        entry = catalogue.entries("models").get(name)
        files = file_options(entry.load()) & values.keys() if entry else frozenset[str]()
        if files:
            return format_spec(name, {key: value for key, value in values.items() if key not in files})
    return spec


def names_weights(spec: Any) -> bool:
    """Whether a model's spec names a file of initial weights."""
    return bool(without_files(spec) != spec)


def texts_in(value: Any) -> list[str]:
    """All texts in nested tables and lists, including keys."""
    if isinstance(value, str):
        return [value]
    inner = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for one in inner for text in texts_in(one)]
