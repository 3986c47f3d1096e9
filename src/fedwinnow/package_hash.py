"""The hash of this package's own source: which code made a result, more exactly than a version says it."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent


@cache
def package_source() -> str:
    """sha256 of every Python file of the package by its place in it: alike in a checkout and in an installed wheel.

    Templates, shipped configs and recipes are left out: what they set is in the config of every run.
    """
    digest = hashlib.sha256()
    for name, path in sorted((path.relative_to(ROOT).as_posix(), path) for path in ROOT.rglob("*.py")):
        content = as_written(path.read_bytes())
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def as_written(content: bytes) -> bytes:
    """Source text with the line ends that it has on most systems: git writes others on Windows."""
    return content.replace(b"\r\n", b"\n")


def source_in(identity: Any) -> str | None:
    """The hash of the source that the identity.json of a run names; None where a run has none."""
    made = identity.get("fedwinnow") if isinstance(identity, dict) else None
    return str(made["source"]) if isinstance(made, dict) and "source" in made else None


def is_current(identity: Any) -> bool:
    """Whether a run was made by the source that runs now; one that does not say it was not."""
    return source_in(identity) == package_source()
