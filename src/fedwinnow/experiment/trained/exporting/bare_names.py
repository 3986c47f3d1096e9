"""Texts of a run without the folders of the machine that it ran on: of a path only the last name stays."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path

from fedwinnow.errors import RunError, UsageError
from fedwinnow.options import format_spec, parse_spec

SEPARATOR = re.compile(r"[/\\]")


def bare(word: str) -> str:
    """A word of a command, or `name:key=value`, with every path in it cut down to its last name."""
    if not SEPARATOR.search(word):
        return word
    flag, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
    try:
        name, values = parse_spec(value)
    except UsageError:
        return flag + equals + last_name(value)
    if not values:
        return flag + equals + last_name(value)
    return flag + equals + format_spec(last_name(name), {key: last_name(text) for key, text in values.items()})


def last_name(path: str) -> str:
    """The last name of a path of any system."""
    return SEPARATOR.split(path.rstrip("/\\"))[-1]


def refuse_folders(files: Iterable[Path], folders: Iterable[Path]) -> None:
    """Refuse files that have the name of one of these folders in them."""
    found = {os.fspath(folder) for folder in folders if len(folder.parts) > 1}
    private = {text for name in found for text in (f"{name}{os.sep}", json.dumps(f"{name}{os.sep}")[1:-1])}
    for file in files:
        content = file.read_bytes()
        if any(text.encode(errors="surrogateescape") in content for text in private):
            raise RunError(
                f"{file.name} would have the path of a folder of this machine in it, so nothing was exported. Export "
                f"in another format."
            )
