"""Flags looked at before they are parsed, so that a mistake is answered in our own words."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import tyro

from fedwinnow.errors import UsageError, unknown
from fedwinnow.options import convert
from fedwinnow.setting import settings_in, written_type

Command = TypeVar("Command")
OPTIONAL = {"--redo": ("all", "stale")}  # flags that mean the first of their values where none is given
FRAME = re.compile(r"[─━│╭╮╰╯-]{3,}|[│╭╮╰╯]")


@dataclass(frozen=True)
class Flag:
    """What one flag of a command takes."""

    name: str  # as it is written: --batch-size
    hint: Any
    several: bool

    @property
    def takes_value(self) -> bool:
        """A switch takes none."""
        return self.hint is not bool

    def check(self, value: str) -> None:
        """Refuse a value of another kind; kinds that only the parser knows are left to it."""
        with contextlib.suppress(TypeError):
            convert(self.name, value, self.hint)


def as_flags(*hidden: str) -> Callable[[type[Command]], type[Command]]:
    """Let the command line write the settings of a class, in the types that it can write; `hidden` ones are no flags.

    The decorator stands above `@dataclass`.
    """

    def annotate(command: type[Command]) -> type[Command]:
        settings = settings_in(command)
        for name, hint in typing.get_type_hints(command, include_extras=True).items():
            if name in settings and typing.get_origin(hint) is not Annotated:  # a command may have said it itself
                written = written_type(hint, settings[name].default)
                command.__annotations__[name] = Annotated[written, tyro.conf.Suppress] if name in hidden else written
        return command

    return annotate


def with_values(words: list[str]) -> list[str]:
    """The words, with the value of a flag that may be given without one."""
    full = []
    for place, word in enumerate(words):
        full.append(word)
        if word in OPTIONAL and not set(words[place + 1 : place + 2]) & set(OPTIONAL[word]):
            full.append(OPTIONAL[word][0])
    return full


def check_flags(command_class: type[Any], words: list[str]) -> None:
    """Refuse a flag that does not exist, a missing value and a value of another kind."""
    if any(word in ("-h", "--help") for word in words):
        return
    known, positional = flags_of(command_class)
    flag: Flag | None = None
    values = 0
    for word in words:
        if not is_flag(word):
            if flag is None and not positional:
                raise UsageError(f"'{word}' was given, but a flag was expected; allowed: {', '.join(sorted(known))}.")
            if flag is not None:
                flag.check(word)
                values += 1
                flag = flag if flag.several else None
            continue
        refuse_without_value(flag, values)
        name, equals, value = word.partition("=")
        flag, values = known.get(name.replace("_", "-")), 0
        if flag is None:
            raise unknown("flag", name, known)
        if equals:
            flag.check(value)
        if equals or not flag.takes_value:
            flag = None
    refuse_without_value(flag, values)


def refuse_without_value(flag: Flag | None, values: int) -> None:
    """A flag whose value did not come; a list may be empty, and whoever wants it says what it needs."""
    if flag is not None and not flag.several and not values:
        raise UsageError(f"{flag.name} was given without a value; write {flag.name} VALUE.")


def is_flag(word: str) -> bool:
    """Whether a word names a flag; a negative number does not."""
    return word.startswith("-") and not re.fullmatch(r"-[\d.].*|-inf|-", word)


def flags_of(command_class: type[Any]) -> tuple[dict[str, Flag], bool]:
    """The flags of a command by name, and whether it takes words without a name too."""
    hints = typing.get_type_hints(command_class, include_extras=True)
    flags: dict[str, Flag] = {}
    marks: list[Any]
    positional = False
    for field in dataclasses.fields(command_class):
        hint, marks = hints[field.name], []
        if typing.get_origin(hint) is Annotated:
            hint, *marks = typing.get_args(hint)
        if tyro.conf.Suppress in marks:
            continue
        if tyro.conf.Positional in marks:
            positional = True
            continue
        renamed = [mark.name for mark in marks if getattr(mark, "name", None)]
        switched_off = "no-" if hint is bool and field.default is True else ""
        name = f"--{switched_off}{renamed[0] if renamed else field.name.replace('_', '-')}"
        several = typing.get_origin(hint) is tuple
        flags[name] = Flag(name, typing.get_args(hint)[0] if several else hint, several)
    return flags, positional


@contextlib.contextmanager
def in_our_words() -> Iterator[None]:
    """What the parser itself complains about, as an error of ours: one message, exit code 2, JSON where asked for."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            yield
    except SystemExit as end:
        text = " ".join(FRAME.sub(" ", said.getvalue()).split())
        if not end.code:
            raise
        raise UsageError(text or "the flags cannot be understood; --help explains them.") from None
