"""A part of an experiment is a frozen dataclass; its fields, made with `option`, are everything a user may set.

The same field is a key on the command line (`name:key=value`), a key in a TOML file, a keyword in Python and a row
of the documentation. Every part checks its values when it is made, so a part is always valid.
"""

from __future__ import annotations

import dataclasses
import math
import re
import types
import typing
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin

from fedwinnow.errors import UsageError, unknown

LARGEST = 2**63 - 1  # the largest whole number in an array
WITHIN = re.compile(r"\w+:\w+=")  # the beginning of a part within a part
DRIVE = re.compile(r"[A-Za-z]:[\\/]")  # the beginning of an absolute path on Windows; no option begins like this


def option(
    default: Any,
    sentence: str,
    *,
    symbol: str = "",
    source: str = "",
    at_least: float | None = None,
    at_most: float | None = None,
    above: float | None = None,
    presets: dict[str, Any] | None = None,
    names_file: bool = False,
) -> Any:
    """Declare one option of a part; `...` as the default makes it required.

    `symbol` is its letter in the paper, `source` says where the default comes from, the bounds are checked. Where the
    published paper and its published code differ, the default is None and `presets` has the value of each: the field
    never holds None, so it is declared with the type of these values. A text that may be the name of a file or
    folder needs `names_file=True`; a Path does not.
    """
    metadata = {
        "sentence": sentence,
        "symbol": symbol,
        "source": source,
        "at_least": at_least,
        "at_most": at_most,
        "above": above,
        "presets": presets,
        "names_file": names_file,
    }
    if default is ...:
        return dataclasses.field(metadata=metadata, kw_only=True)
    return dataclasses.field(default=default, metadata=metadata, kw_only=True)


@dataclasses.dataclass(frozen=True)
class Part:
    """Base of everything that is chosen by name: data sources, partitions, noises, models, methods."""

    name: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is None and field.metadata.get("presets"):
                object.__setattr__(self, field.name, self.by_preset(field))
            elif "sentence" in field.metadata:
                hint = hints_of(type(self)).get(field.name, Any)  # type: ignore[arg-type]  # a class is hashable
                typed = value if hint is Any else convert(f"{self.name}: {field.name}", value, hint)
                if isinstance(value, str | bool):  # a text means the same in Python as on the command line
                    object.__setattr__(self, field.name, typed)
            check_bounds(self.name, field, getattr(self, field.name))

    def by_preset(self, field: dataclasses.Field[Any]) -> Any:
        """The value of an option that the user did not set: its default, or the value of the chosen preset."""
        presets = field.metadata.get("presets")
        return presets[getattr(self, "preset")] if presets else field.default  # noqa: B009

    def values(self) -> dict[str, Any]:
        """Every option with its value, in the order of declaration."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def __str__(self) -> str:
        """The shortest spec that makes this part again: options at their default are left out."""
        usual = {field.name: self.by_preset(field) for field in dataclasses.fields(self)}
        return format_spec(self.name, {key: value for key, value in self.values().items() if value != usual[key]})


AnyPart = TypeVar("AnyPart", bound=Part)


@cache
def hints_of(part: type[Part]) -> dict[str, Any]:
    """The types of a part's fields; empty if a class inside a function uses names that only the function has."""
    try:
        return typing.get_type_hints(part)
    except NameError:
        return {}


def file_options(part: type[Part]) -> frozenset[str]:
    """The options of a part that name a file or folder: every Path, and texts with `names_file`."""
    hints = hints_of(part)  # type: ignore[arg-type]  # mypy takes no class for hashable
    return frozenset(
        field.name
        for field in dataclasses.fields(part)
        if field.metadata.get("names_file") or Path in (hints.get(field.name), *get_args(hints.get(field.name)))
    )


def check_bounds(part: str, field: dataclasses.Field[Any], value: Any) -> None:
    """Refuse a number outside the bounds of its option."""
    meta = field.metadata
    words = [
        f"{text} {meta[key]:g}"
        for key, text in (("above", "above"), ("at_least", "at least"), ("at_most", "at most"))
        if meta.get(key) is not None
    ]
    if outside(meta, value):
        allowed = " and ".join(words) if words else "a number"
        raise UsageError(f"{part}: {field.name}={value} was given; allowed: {allowed}. ({meta['sentence']})")


def outside(bounds: Mapping[str, Any], value: Any) -> bool:
    """Whether a number lies outside the bounds that were declared for it; what is no number has none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return (
        value != value  # NaN; math.isnan would fail on a whole number beyond the range of a float
        or (bounds.get("at_least") is not None and value < bounds["at_least"])
        or (bounds.get("at_most") is not None and value > bounds["at_most"])
        or (bounds.get("above") is not None and value <= bounds["above"])
        or (bounds.get("below") is not None and value >= bounds["below"])
    )


def build(kind: str, part: type[AnyPart], values: dict[str, Any]) -> AnyPart:
    """Make a part from raw values (texts from a command line, or typed values from TOML or Python)."""
    fields = {field.name: field for field in dataclasses.fields(part)}
    hints = hints_of(part)  # type: ignore[arg-type]  # mypy takes no class for hashable
    ready = {}
    for key, raw in values.items():
        if key not in fields:
            raise unknown_option(kind, part.name, key, values, fields)
        if raw is None and fields[key].metadata.get("presets"):
            continue  # the value of the preset
        ready[key] = convert(f"{kind} '{part.name}': {key}", raw, hints[key])
    for key, field in fields.items():
        if key not in ready and field.default is dataclasses.MISSING:
            raise UsageError(
                f"{kind} '{part.name}' needs {key}=... ({field.metadata['sentence']}) "
                f"For example: {format_spec(part.name, {**values, key: example_value(hints[key])})}"
            )
    return part(**ready)


def unknown_option(kind: str, name: str, key: str, values: dict[str, Any], allowed: Iterable[str]) -> UsageError:
    """The error for an option that a part does not have; it may belong to a part within it, without quotes."""
    problem = unknown(f"option of {kind} '{name}':", key, allowed)
    for outer, inner in values.items():
        if isinstance(inner, str) and WITHIN.match(inner):
            quoted = f"'{name}:{outer}=\"{inner},{key}={values[key]}\"'"
            return UsageError(f"{problem} If it belongs to {inner}, write {quoted}, with both pairs of quotes.")
    return problem


def example_value(hint: Any) -> str:
    """A value to show in an error message that asks for a missing option."""
    return {int: "10", float: "0.5", Path: "file", bool: "true"}.get(hint, "...")


def convert(where: str, raw: Any, hint: Any) -> Any:
    """Turn a raw value into the type of its option, or raise an error that says what is allowed."""
    if hint is Any:  # the part itself says what it takes
        return raw
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        members = [member for member in get_args(hint) if member is not type(None)]
        own_none = any("none" in get_args(member) for member in members)  # "none" may be one of the words of a Literal
        if raw is None or (isinstance(raw, str) and raw.lower() == "none" and not own_none):
            if len(members) < len(get_args(hint)):
                return None
            raise UsageError(f"{where}=none was given, but a value is needed.")
        problems = []
        for member in members:
            try:
                return convert(where, raw, member)
            except UsageError as problem:
                problems.append(problem)
        raise problems[0]
    if origin is Literal:
        text = str(raw).lower() if isinstance(raw, bool) else str(raw)  # true of TOML or Python becomes "true"
        for allowed in get_args(hint):
            if text == str(allowed):
                return allowed
        raise unknown(f"value of {where}:", text, map(str, get_args(hint)))
    converters = {bool: to_bool, int: to_int, float: to_float, str: to_text, Path: to_path}
    if hint not in converters:
        raise TypeError(f"{where}: options of type {hint} are not supported")
    return converters[hint](where, raw)


def to_bool(where: str, raw: Any) -> bool:
    """Accept true/false, yes/no, on/off, 1/0."""
    text = str(raw).lower()
    if text in ("true", "yes", "on", "1"):
        return True
    if text in ("false", "no", "off", "0"):
        return False
    raise UsageError(f"{where}={raw} was given; allowed: true or false.")


def to_int(where: str, raw: Any) -> int:
    """Accept a whole number."""
    try:
        if isinstance(raw, bool) or (isinstance(raw, float) and not raw.is_integer()):
            raise ValueError
        number = int(raw)
    except (TypeError, ValueError, OverflowError):
        raise UsageError(f"{where}={raw} was given; allowed: a whole number.") from None
    if abs(number) > LARGEST:
        raise UsageError(f"{where} was given a number of {number.bit_length()} bits; allowed: at most {LARGEST}.")
    return number


def to_float(where: str, raw: Any) -> float:
    """Accept a number or `inf`, but not `nan`."""
    try:
        if isinstance(raw, bool):
            raise ValueError
        number = float(raw)
        if math.isnan(number):
            raise ValueError
        return number
    except (TypeError, ValueError, OverflowError):
        raise UsageError(f"{where}={raw} was given; allowed: a number.") from None


def to_text(where: str, raw: Any) -> str:
    """Accept any text."""
    if isinstance(raw, dict | list):
        raise UsageError(f"{where} was given a list or table; allowed: a text.")
    return str(raw)


def to_path(where: str, raw: Any) -> Path:
    """Accept a path; `~` is the home folder."""
    text = to_text(where, raw)
    if not text or "\0" in text:
        raise UsageError(f"{where} is empty or not a path; allowed: a path.")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise UsageError(f"{where}={text} was given, but this user has no home folder; write the path out.") from None


# --- the grammar: name:key=value,key=value -------------------------------------------------------------------------


def parse_spec(text: str) -> tuple[str, dict[str, str]]:
    """Split `name:key=value,key="a, b"` into the name and its raw values."""
    spec = text.strip()
    drive = DRIVE.match(spec)
    start = drive.end() if drive else 0
    name, colon, rest = spec[start:].partition(":")
    name = spec[:start] + name
    if not name:
        raise UsageError(f"'{text}' was given; allowed: name or name:key=value,key=value.")
    values: dict[str, str] = {}
    for piece in split_outside_quotes(rest, ",", text) if colon and rest.strip() else []:
        key, equals, value = piece.partition("=")
        key, value = key.strip().replace("-", "_"), value.strip()
        if not equals or not key:
            raise UsageError(f"'{piece}' in '{text}' is not key=value; allowed: {name}:key=value,key=value.")
        if key in values:
            raise UsageError(f"'{key}' is given twice in '{text}'.")
        values[key] = value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'" else value
    return name, values


def split_outside_quotes(rest: str, separator: str, whole: str) -> list[str]:
    """Split at a separator, except inside quotes that begin right after an equals sign."""
    pieces, start, quote = [], 0, ""
    for place, letter in enumerate(rest):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'" and place and rest[place - 1] == "=":
            quote = letter
        elif letter == separator:
            pieces.append(rest[start:place])
            start = place + 1
    if quote:
        raise UsageError(f"a quote is not closed in '{whole}'.")
    return [*pieces, rest[start:]]


def format_spec(name: str, values: dict[str, Any]) -> str:
    """The text that `parse_spec` reads back to the same part."""
    return name + ":" * bool(values) + ",".join(f"{key}={format_value(value)}" for key, value in values.items())


def format_value(value: Any) -> str:
    """One value as the grammar writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        short = f"{value:.12g}"
        return short if float(short) == value else repr(float(value))
    text = value.as_posix() if isinstance(value, Path) else str(value)
    if "," in text or text != text.strip() or text[:1] in ("'", '"'):
        return f"'{text}'" if '"' in text else f'"{text}"'
    return "none" if value is None else text
