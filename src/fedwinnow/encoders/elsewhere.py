"""An encoder that was named on another machine: its files may lie elsewhere on this one."""

from __future__ import annotations

from typing import Any

from fedwinnow import catalogue
from fedwinnow.encoders.encoder import UNCHANGING, Encoder
from fedwinnow.encoders.make_encoder import USUAL_FUNCTION, find_encoder, normalised
from fedwinnow.errors import UsageError
from fedwinnow.options import file_options, format_spec

REQUIRED = "required"  # the default of an option that has none, as the catalogue prints it


def has_files(spec: Any) -> bool:
    """Whether a spec names files or folders, or an encoder that cannot do without them."""
    name, values = named(spec)
    entry = catalogue.find("encoders", name)
    files = file_options(entry.load())
    return any(
        option.name in files and (option.name in values or option.default == REQUIRED) for option in entry.options
    )


def needs_files(spec: Any) -> bool:
    """Whether a spec lacks a file that its encoder cannot do without."""
    name, values = named(spec)
    entry = catalogue.find("encoders", name)
    files = file_options(entry.load())
    return any(one.name in files and one.default == REQUIRED and one.name not in values for one in entry.options)


def example_of(name: str) -> str:
    """How the files of an encoder are named, for an advice."""
    if name == "own":
        return "./my_encoder.py:build"
    entry = catalogue.find("encoders", name)
    files = file_options(entry.load())
    needed = [one.name for one in entry.options if one.name in files and one.default == REQUIRED]
    return format_spec(name, dict.fromkeys(needed or sorted(files)[:1], "FILE-OR-FOLDER"))


def without_files(spec: Any) -> str:
    """The spec without the options that name files, which every machine names for itself."""
    encoder = find_encoder(spec)
    name, values = named(encoder)
    files = file_options(type(encoder))
    return format_spec(name, {key: value for key, value in values.items() if key not in files})


def as_here(told: Any, own: Any = None) -> Encoder:
    """The encoder that was named elsewhere; `own` names its files on this machine, and the rest stays as told."""
    if own is None:
        return find_encoder(told)
    (name, theirs), (other, mine) = named(told), named(own)
    if other != name:
        raise UsageError(f"--encoder {own} was given; allowed: '{name}' with its files here, because that is agreed.")
    files = file_options(catalogue.find("encoders", name).load())
    kept = {key: value for key, value in theirs.items() if key not in files}
    found = find_encoder(format_spec(name, kept | mine))
    agreed = find_encoder(format_spec(name, kept | {key: value for key, value in mine.items() if key in files}))
    for key in set(UNCHANGING) & mine.keys():  # no hash would show that they differ
        if getattr(found, key) != getattr(agreed, key):
            raise UsageError(
                f"--encoder {own} was given; allowed: {key}={getattr(agreed, key)}, as it was agreed, or without {key}."
            )
    return found


def named(spec: Any) -> tuple[str, dict[str, Any]]:
    """The name and the options of a spec, of a user's file too."""
    name, values = catalogue.split("encoders", normalised(str(spec) if isinstance(spec, Encoder) else spec))
    if values.get("function") == USUAL_FUNCTION:  # a file alone means it, too
        del values["function"]
    return name, values
