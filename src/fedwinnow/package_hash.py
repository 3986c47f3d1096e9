"""The hash of this package's source: it says which code made a result, more exactly than a version does."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent


@cache
def package_source() -> str:
    """sha256 of the names and contents of all Python files; the same in a checkout and in an installed wheel.

    Templates, shipped configs and recipes are left out, because the config of every run has what they set.
    """
    digest = hashlib.sha256()
    for name, path in sorted((path.relative_to(ROOT).as_posix(), path) for path in ROOT.rglob("*.py")):
        content = as_written(path.read_bytes())
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def as_written(content: bytes) -> bytes:
    """Source text with the line ends of Linux; git may write others on Windows."""
    return content.replace(b"\r\n", b"\n")


def source_in(identity: Any) -> str | None:
    """The hash of the source in the identity.json of a run; None if it has none."""
    made = identity.get("fedwinnow") if isinstance(identity, dict) else None
    return str(made["source"]) if isinstance(made, dict) and "source" in made else None


def is_current(identity: Any) -> bool:
    """Whether a run was made by the present source; false for a run without a hash."""
    return source_in(identity) == package_source()
