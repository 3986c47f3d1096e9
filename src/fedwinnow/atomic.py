"""Writing files so that a crash leaves the old file or the new one, never half of one."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

LEFT_OVER = re.compile(r"\..+\.[0-9a-f]{16}")  # the name of a temporary file, which a killed process leaves


@contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[IO[bytes]]:
    """Open a temporary file beside `path`; it takes the place of `path` only when all was written.

    A durable write also survives a power cut; the others survive everything but that.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
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


def write_text(path: Path, text: str, *, durable: bool = True) -> None:
    """Write a whole text file at once."""
    with replacing(path, durable=durable) as stream:
        stream.write(text.encode("utf-8"))


def sweep(folder: Path) -> None:
    """Delete what killed processes left half written; only for a folder that nobody else is writing to."""
    for path in folder.iterdir():
        if LEFT_OVER.fullmatch(path.name):
            path.unlink(missing_ok=True)
