"""A setting is declared once, as a field made with `setting`: its type, default, bounds and one sentence.

The flags and their help, the keys of a TOML file, the keywords of a Python function with their docstring, the tables
of the documentation and the messages about wrong values are all made from these fields.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import inspect
import json
import textwrap
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Optional, ParamSpec, TypeVar, Union, get_args, get_origin

from fedwinnow.errors import UsageError, speaking_python, unknown
from fedwinnow.old_names import new_keywords
from fedwinnow.options import convert, outside

Keywords = ParamSpec("Keywords")
Declared = TypeVar("Declared")
Returned = TypeVar("Returned")


def setting(
    default: Any,
    sentence: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    above: float | None = None,
    below: float | None = None,
    fits: Callable[[Any], bool] | None = None,
    allowed: str = "",
    since: str = "",
) -> Any:
    """Declare one setting, as the default of a field of a dataclass.

    `fits` is a check that no bound can express; `allowed` says what is allowed where the bounds alone would not say
    it well; `since` names the version that added the setting: older runs, which do not name it, had its default. The
    annotation of the field is the type that Python takes; `written_type` derives that of the flag.
    """
    bounds = {"at_least": at_least, "at_most": at_most, "above": above, "below": below}
    metadata = {"help": sentence, **bounds, "fits": fits, "allowed": allowed, "since": since}
    return dataclasses.field(default=default, metadata=metadata)


def same(declared: type[Any], name: str, sentence: str = "") -> Any:
    """A setting of another class, as the default of a field of this one, where it may have a sentence of its own."""
    one = settings_in(declared)[name]
    return dataclasses.field(default=one.default, metadata={**one.metadata, "help": sentence or one.metadata["help"]})


def changed(**new: Any) -> Callable[[type[Declared]], type[Declared]]:
    """Give inherited settings another default, or a pair: another default and another sentence.

    The decorator stands below `@dataclass`, which then reads the settings with these changes.
    """

    def change(declared: type[Declared]) -> type[Declared]:
        before: dict[str, tuple[Any, dataclasses.Field[Any]]] = {}
        for base in filter(dataclasses.is_dataclass, reversed(declared.__mro__)):
            before |= {one.name: (types_of(base)[one.name], one) for one in dataclasses.fields(base)}
        for name, value in new.items():
            hint, inherited = before[name]
            default, sentence = value if isinstance(value, tuple) else (value, inherited.metadata["help"])
            declared.__annotations__[name] = hint if default is not None or hint is Any else Optional[hint]  # noqa: UP045
            metadata = {**inherited.metadata, "help": sentence}
            setattr(declared, name, dataclasses.field(default=default, metadata=metadata, kw_only=True))
        return declared

    return change


def settings_in(declared: type[Any]) -> dict[str, dataclasses.Field[Any]]:
    """The settings of a class by name, in the order of declaration."""
    return {one.name: one for one in dataclasses.fields(declared) if "help" in one.metadata}


@functools.cache
def types_of(declared: Any) -> dict[str, Any]:
    """The types of a class's fields."""
    return typing.get_type_hints(declared)


def taken(wanted: type[Declared], settings: Any) -> Declared:
    """Those of the settings that another class declares too, as an object of that class."""
    return wanted(**{name: getattr(settings, name) for name in settings_in(wanted) if hasattr(settings, name)})


def flag_of(name: str) -> str:
    """A setting as the command line writes it."""
    return f"--{name.replace('_', '-')}"


# --- bounds --------------------------------------------------------------------------------------------------------


def check_settings(settings: Any) -> None:
    """Refuse values of another type, then values that are not allowed. Parts (Any) say themselves what they are."""
    declared: Any = type(settings)  # mypy takes no class for hashable, which the cache needs
    hints, values = types_of(declared), {}
    for name in settings_in(declared):
        values[name] = getattr(settings, name)
        if hints[name] is not Any:
            values[name] = convert(flag_of(name), values[name], hints[name])
            if isinstance(getattr(settings, name), str):  # a text in Python means what it means on the command line
                object.__setattr__(settings, name, values[name])
    for name, value in values.items():
        check_setting(declared, name, value)


def check_setting(declared: type[Any], name: str, value: Any) -> None:
    """Refuse a value that a setting does not allow."""
    one = settings_in(declared)[name]
    fits = one.metadata["fits"]
    if value is not None and (outside(one.metadata, value) or (fits is not None and not fits(value))):
        raise UsageError(f"{flag_of(name)} {value} was given; allowed: {allowed_values(one)}.")


def allowed_values(one: dataclasses.Field[Any]) -> str:
    """The bounds of a setting in words; empty where there are none."""
    meta = one.metadata
    if meta["allowed"]:
        return str(meta["allowed"])
    given = {key: meta[key] for key in ("above", "at_least", "at_most", "below") if meta[key] is not None}
    if given.keys() == {"at_least"}:
        return f"{given['at_least']:g} or more"
    words = " and ".join(f"{key.replace('_', ' ')} {bound:g}" for key, bound in given.items())
    return f"{words}, or none" if words and one.default is None else words


# --- the command line and TOML -------------------------------------------------------------------------------------


def union_members(hint: Any) -> tuple[Any, ...]:
    """The types of which a value may have one."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def written_type(hint: Any, default: Any) -> Any:
    """What a command line or a TOML file writes for a setting of this type: a part is a text, a path is no other text.

    A setting whose default is None may be `none`; lists and True or False beside words are for Python only.
    """
    members = union_members(hint)
    words = any(get_origin(member) is Literal for member in members)
    kept = [
        str if member is Any else member
        for member in members
        if get_origin(member) is not collections.abc.Sequence
        and not (member is str and Path in members)
        and not (member is bool and words)
    ]
    return Union[tuple(kept + [type(None)] * (default is None))]  # noqa: UP007


# --- functions whose keywords are settings -------------------------------------------------------------------------


def keywords_of(
    declared: Callable[Keywords, Declared], groups: Mapping[str, Iterable[str]], hidden: Iterable[str] = ()
) -> Callable[[Callable[[Declared, Mapping[str, Any]], Returned]], Callable[Keywords, Returned]]:
    """Make the settings of a class the keywords of a function, for editors, type checkers, `help` and readers.

    The function is handed the settings as an object, and apart the arguments that were really given. `groups` says
    under which heading of the docstring which settings are listed; `hidden` ones are refused.
    """
    signature = inspect.signature(declared)
    shown = [one for one in signature.parameters.values() if one.name not in set(hidden)]
    known = [one.name for one in shown]

    def decorate(function: Callable[[Declared, Mapping[str, Any]], Returned]) -> Callable[Keywords, Returned]:
        @functools.wraps(function)
        def called(*values: Keywords.args, **keywords: Keywords.kwargs) -> Returned:
            with speaking_python():
                given = new_keywords(keywords, known)
                for name in given:
                    if name not in known:
                        raise unknown("setting", name, known)
                return function(declared(*values, **given), signature.bind(*values, **given).arguments)

        lists = [f"{heading}\n\n{listed(declared, names)}" for heading, names in groups.items()]
        called.__doc__ = "\n\n".join([inspect.cleandoc(function.__doc__ or ""), *lists])
        returned = inspect.signature(function).return_annotation
        called.__signature__ = signature.replace(parameters=shown, return_annotation=returned)  # type: ignore[attr-defined]
        called.declared = declared  # type: ignore[attr-defined]  # where the reference finds the settings
        return called

    return decorate


def shown(default: Any) -> str:
    """A default as a program would write it."""
    if isinstance(default, str | Path):
        return json.dumps(default if isinstance(default, str) else default.as_posix())
    return repr(default)


def listed(declared: Any, names: Iterable[str]) -> str:
    """Settings with default and sentence, as a docstring shows them."""
    settings = settings_in(declared)
    lines = []
    for name in names:
        call = f"    {name}={shown(settings[name].default)}"
        text = f"{call:<26} {settings[name].metadata['help']}"
        lines += textwrap.wrap(text, 118, subsequent_indent=" " * 27, drop_whitespace=True, break_on_hyphens=False)
    return "\n".join(lines)
