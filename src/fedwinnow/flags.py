"""From the words of a command line and a config file in TOML to a command: the same names in both, flags win."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
import tomllib
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro

from fedwinnow.errors import DataError, UsageError, unknown
from fedwinnow.files import check_format
from fedwinnow.options import LARGEST, convert, format_spec, parse_spec
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


PARTS = ("data", "partition", "noise", "model", "method", "optimizer")


def with_config(command_class: type[Any], flags: list[str]) -> tuple[Any, list[str]]:
    """The command's defaults from the file that `--config` names, and the flags without it."""
    names = {field.name for field in dataclasses.fields(command_class)}
    if "config" not in names:
        return None, flags
    if getattr(command_class, "takes_file", False) and flags and not flags[0].startswith("-"):
        flags = ["--config", *flags]
    if sum(flag.partition("=")[0] == "--config" for flag in flags) > 1:
        raise UsageError("--config is given twice; allowed: one file.")
    for place, flag in enumerate(flags):
        if flag == "--config" and place + 1 < len(flags):
            path, rest = flags[place + 1], flags[:place] + flags[place + 2 :]
        elif flag.startswith("--config="):
            path, rest = flag.partition("=")[2], flags[:place] + flags[place + 1 :]
        else:
            continue
        found = find_config(path)
        return command_class(**read_config(found, command_class), config=found), rest
    return None, flags


def keep_options(file: Any, command: Any) -> Any:
    """A flag that names the same part as the file changes only the options it has: the others stay as in the file."""
    merged = {name: both(getattr(file, name), getattr(command, name)) for name in PARTS if hasattr(command, name)}
    return dataclasses.replace(command, **merged)


def both(of_file: str | None, of_flag: str | None) -> str | None:
    """One part as the file and the flag together describe it."""
    if of_file is None or of_flag is None or of_file == of_flag:
        return of_flag
    try:
        (name, options), (same, changes) = parse_spec(of_file), parse_spec(of_flag)
    except UsageError:  # not in the grammar (a path, a function in a file), or wrong, which its reader will say better
        return of_flag
    return format_spec(name, options | changes) if name == same else of_flag


def find_config(name: str) -> Path:
    """The file of this name, or the set-up of this name that comes with the package."""
    path = Path(name)
    return path if path.exists() else shipped().get(name, path)


def shipped() -> dict[str, Path]:
    """The set-ups of the papers that come with the package, by name: feddiv/cifar10."""
    folder = Path(__file__).parent / "configs"
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.glob("*/*.toml"))}


def read_config(path: Path, command_class: type[Any]) -> dict[str, Any]:
    """The fields of a command from a TOML file; a part may be a text or a table with `kind`."""
    if path.exists() and not path.is_file():
        what = "a folder" if path.is_dir() else "a device or a pipe"
        raise UsageError(f"--config {path}: it is {what}; allowed: a TOML file.")
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise UsageError(
            f"--config {path}: cannot be read: {problem.strerror}. Allowed: a TOML file, or a name from `fedwinnow "
            f"configs`: {', '.join(shipped())}."
        ) from None
    except (ValueError, RecursionError) as problem:  # also of letters that are no UTF-8 and of endless numbers
        raise DataError(f"{path}: not valid TOML: {problem}.") from None
    fields = {field.name for field in dataclasses.fields(command_class)} - {"config"}
    hints = {name: hint for name, hint in typing.get_type_hints(command_class).items() if name in fields}
    values = {}
    for key, raw in table.items():
        name = key.replace("-", "_")
        if key == "format" and key not in hints:  # the file is the config.toml of a run
            check_format(path, raw)
            continue
        if name not in hints:
            raise unknown(f"key in {path}:", key, hints)
        if name in values:
            raise UsageError(f"{path}: {name} is given twice, with - and with _; allowed: once.")
        refuse_endless(path, key, raw)
        if typing.get_origin(hints[name]) is tuple:
            values[name] = as_list(path, key, raw, typing.get_args(hints[name])[0])
            continue
        values[name] = convert(f"{path}: {key}", as_spec(path, key, raw) if isinstance(raw, dict) else raw, hints[name])
    return values


def as_list(path: Path, key: str, raw: Any, hint: Any) -> tuple[Any, ...]:
    """A list of values; where tables are wanted, `[[key]]` is one of them."""
    tables = typing.get_origin(hint) is dict
    if not isinstance(raw, list) or any(isinstance(one, dict) != tables for one in raw):
        raise UsageError(f"{path}: {key} must be a list of {'tables ([[' + key + ']])' if tables else 'values'}.")
    for one in raw:
        refuse_endless(path, key, one)
    return tuple(one if tables else convert(f"{path}: {key}", one, hint) for one in raw)


def refuse_endless(path: Path, key: str, raw: Any) -> None:
    """TOML knows numbers of any length; Python refuses to print the longest, so no later message could."""
    for value in raw.values() if isinstance(raw, dict) else [raw]:
        if isinstance(value, int) and abs(value) > LARGEST:
            raise UsageError(f"{path}: {key} has a number of {value.bit_length()} bits; allowed: at most {LARGEST}.")


def as_spec(path: Path, key: str, table: dict[str, Any]) -> str:
    """A table with `kind` as the text the command line would have."""
    kind = table.get("kind")
    if not isinstance(kind, str):
        raise UsageError(f'{path}: the table [{key}] needs a kind, for example kind = "iid".')
    values = {name.replace("-", "_"): value for name, value in table.items() if name != "kind"}
    if nested := [name for name, value in values.items() if isinstance(value, dict | list)]:
        raise UsageError(f"{path}: [{key}] {nested[0]} is a list or table; allowed: a text, a number, true or false.")
    return format_spec(kind, values)
