"""What the commands share: common flags, and printing as text or as JSON."""

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
        """Where text is printed; prints nothing with --quiet or --json."""
        from rich.console import Console

        console = Console(quiet=self.quiet or self.json, highlight=False)
        console.soft_wrap = not console.is_terminal  # a file or a pipe has no width
        return console

    def emit(self, value: Any) -> None:
        """Print a value as JSON, with --json."""
        if self.json:
            print(json.dumps(value, indent=1, allow_nan=False))


def escaped(text: object) -> str:
    """A user's text, for example a path, with brackets escaped for rich."""
    from rich.markup import escape

    return escape(str(text))
