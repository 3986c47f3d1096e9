"""What the commands share: flags that all have, and printing for people or for machines."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedwinnow.setting import setting

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Flags:
    """Flags of every command."""

    json: bool = setting(False, "Print one JSON value for machines instead of text.")
    quiet: bool = setting(False, "Print nothing but warnings and errors.")

    def console(self) -> Console:
        """Where text for people goes; nowhere when it is not wanted."""
        from rich.console import Console

        console = Console(quiet=self.quiet or self.json, highlight=False)
        console.soft_wrap = not console.is_terminal  # a file or a pipe has no width
        return console

    def emit(self, value: Any) -> None:
        """Print a value for machines, if that was asked for."""
        if self.json:
            print(json.dumps(value, indent=1, allow_nan=False))


def escaped(text: object) -> str:
    """A user's text, a path for example, without the meaning that rich gives to brackets."""
    from rich.markup import escape

    return escape(str(text))
