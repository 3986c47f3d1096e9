"""Writing files so that a crash leaves the old file or the new one, never half of one.

A write is durable unless it says otherwise: when it returns, the new file is on the disk, and so are its name and the
folders that were made for it. A power cut in the middle leaves the old file or the new one, whole. Two conditions: the
disk must keep what it says it has written, and the system must be able to write a folder out (Windows is not: there
the name of a new file is written out by the system itself, some time later). A write that is not durable survives the
death of the process, not a power cut.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

LEFT_OVER = re.compile(r"\.(.+)\.[0-9a-f]{16}")  # the name of a temporary file, which a killed process leaves


@contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[IO[bytes]]:
    """Open a temporary file beside `path`; it takes the place of `path` only when all was written."""
    make_folder(path.parent, durable=durable)
    # Not `tempfile`, whose files only their owner may read: a scene or a report is made to be shared.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with temporary.open("xb") as stream:
            yield stream
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        settle(path.parent)


def write_text(path: Path, text: str, *, durable: bool = True) -> None:
    """Write a whole text file at once."""
    with replacing(path, durable=durable) as stream:
        stream.write(text.encode("utf-8"))


def make_folder(folder: Path, *, durable: bool = True) -> None:
    """Make a folder and those above it that are missing."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()] if durable else []
    folder.mkdir(parents=True, exist_ok=True)
    for place in missing:
        settle(place.parent)


def settle(path: Path) -> None:
    """Wait until a file's content, or the names in a folder, are on the disk."""
    if os.name == "nt" and path.is_dir():
        return
    handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sweep(folder: Path, *names: str) -> None:
    """Delete what killed processes left half written: all, or what was to become a file of one of these names.

    Only for a folder, or for names, that nobody else is writing to.
    """
    for path in folder.iterdir() if folder.is_dir() else ():
        found = LEFT_OVER.fullmatch(path.name)
        if found is not None and (not names or found[1] in names):
            path.unlink(missing_ok=True)
