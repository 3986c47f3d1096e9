"""What `serve` and `join` share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from fedwinnow.errors import UsageError


def refuse_unless_protected(tls: Path | None, insecure: bool, say: Callable[[str], None]) -> None:
    """Refuse a connection in plain text unless --insecure was given."""
    if tls is None and not insecure:
        raise UsageError(
            "no --tls was given; allowed: --tls FOLDER (`fedwinnow certificates` makes one), or --insecure, which "
            "means plain text without keys: for trials on one machine."
        )
    if tls is not None and insecure:
        raise UsageError("--tls and --insecure exclude each other; give one of them.")
    if insecure:
        say("insecure: everything travels as plain text, and anybody who reaches the port can read it and take part")


def tell(text: str, *, quiet: bool) -> None:
    """Print a line for the operator at once, to stderr, so that stdout has JSON only."""
    if not quiet:
        print(text, file=sys.stderr, flush=True)
