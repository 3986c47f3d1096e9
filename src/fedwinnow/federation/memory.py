"""What clients remember between rounds: one file per client and round, with a checksum."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save

from fedwinnow.errors import DataError, RunError
from fedwinnow.files import FORMAT, check_format, make_folder, settle
from fedwinnow.mathematics.payload import Payload, size_in_bytes

KEY = "fedwinnow"  # the only key of the metadata: safetensors would write several in random order
BLANK = "0" * 64
MARK = b'{\\"checksum\\": \\"'  # how the metadata begins, as JSON within JSON
REMEDY = "Restore the file from a copy, or start the run anew with --redo"


def seal(tensors: Payload, facts: dict[str, Any] | None = None) -> list[bytes | memoryview]:
    """Tensors and facts as the content of a file, in pieces, so that a large model is not copied again."""
    text = json.dumps({"checksum": BLANK, "format": FORMAT, "facts": facts or {}}, sort_keys=True)
    ready = {name: value.detach().cpu().contiguous() for name, value in sorted(tensors.items())}
    content = save(ready, metadata={KEY: text})
    place = content.index(MARK) + len(MARK)
    return [content[:place], checksum_of(content).encode(), memoryview(content)[place + len(BLANK) :]]


def unseal(path: Path, remedy: str = REMEDY) -> tuple[Payload, dict[str, Any]]:
    """The tensors and facts of a file, with its checksum compared; files of format 1 have no checksum."""
    try:
        content = path.read_bytes()
        facts = metadata_of(content)
        if "checksum" in facts or "format" in facts:
            check_format(path, facts["format"])
            if facts["checksum"] != checksum_of(content):
                raise ValueError("its checksum does not match its content")
            facts = facts["facts"]
        return load(content), facts
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError) as problem:
        reason = f"it has no {problem}" if isinstance(problem, KeyError) else problem
        raise DataError(f"{path}: damaged ({reason}). {remedy}.") from None


def metadata_of(content: bytes) -> dict[str, Any]:
    """The facts in the header of a safetensors file; empty for a memory of format 1."""
    length = int.from_bytes(content[:8], "little")
    if not 2 <= length <= len(content) - 8:
        raise ValueError("it is cut short")
    metadata = json.loads(content[8 : 8 + length]).get("__metadata__", {})
    found = json.loads(metadata[KEY]) if metadata else {}
    if not isinstance(found, dict):
        raise ValueError("its header has no facts")
    return found


def checksum_of(content: bytes) -> str:
    """The checksum of a file, computed with blanks in the place of the checksum."""
    place = content.index(MARK) + len(MARK)
    digest = hashlib.sha256(content[:place])
    digest.update(BLANK.encode())
    digest.update(memoryview(content)[place + len(BLANK) :])
    return digest.hexdigest()


class Memory:
    """The memories of all clients of a run, on disk; up to `hold` bytes of them are on disk only where a checkpoint is.

    Only a process that alone reads and writes may hold memories. A checkpoint needs the last of several versions, so
    most of them never become a file.
    """

    def __init__(self, folder: Path, versions: dict[int, str] | None = None, *, hold: int = 0) -> None:
        self.folder = folder
        self.versions = dict(versions or {})
        self.settled: set[str] = set()  # versions that are known to be on the disk
        self.hold = hold
        self.held: dict[str, Payload] = {}
        self.held_bytes = 0

    def read(self, version: str | None) -> Payload:
        """What a client remembers; empty before its first visit."""
        if version in self.held:
            return {name: value.clone() for name, value in self.held[version].items()}
        return {} if version is None else unseal(self.folder / version)[0]

    def check(self) -> None:
        """Refuse damaged files before the run computes anything from them or drops a client because of them."""
        for version in self.versions.values():
            self.read(version)
        self.settled = set(self.versions.values())

    def write(self, client: int, round_number: int, exchange: int, state: Payload) -> str | None:
        """Store a new version beside the current one."""
        if not state:
            return None
        name = f"{client:06d}-{round_number}-{exchange}.safetensors"
        self.forget(name)
        size = size_in_bytes(state)
        if self.held_bytes + size > self.hold:
            self.store(name, state)
        else:
            self.held[name] = {key: value.detach().cpu().clone() for key, value in sorted(state.items())}
            self.held_bytes += size
        return name

    def store(self, name: str, state: Payload) -> None:
        """Write the file of a version."""
        content = seal(state)
        temporary = self.folder / f".{name}"
        try:
            make_folder(self.folder)
            with temporary.open("wb") as stream:
                stream.writelines(content)
            temporary.replace(self.folder / name)
        except OSError as problem:
            raise RunError(f"{self.folder}: a client's memory cannot be written ({problem.strerror}).") from None

    def accept(self, client: int, version: str | None) -> None:
        """Make a version the current one."""
        if version is None:
            self.versions.pop(client, None)
        else:
            self.versions[client] = version

    def forget(self, name: str) -> None:
        """Hold a version no longer."""
        if name in self.held:
            self.held_bytes -= size_in_bytes(self.held.pop(name))

    def settle(self, needed: Iterable[str]) -> None:
        """Wait until these versions are on the disk; the next checkpoint refers to them."""
        names = set(needed)
        new = sorted(names - self.settled)
        try:
            for name in new:
                if name in self.held:
                    self.store(name, self.held[name])
                settle(self.folder / name)
            if new:
                settle(self.folder)
        except OSError as problem:
            raise RunError(f"{self.folder}: a client's memory cannot be written ({problem.strerror}).") from None
        self.settled = names

    def prune(self, needed: Iterable[str]) -> None:
        """Delete every version that the last checkpoint does not need."""
        kept = set(needed)
        for name in self.held.keys() - kept:
            self.forget(name)
        if self.folder.is_dir():
            for path in self.folder.iterdir():
                if path.name not in kept:
                    path.unlink(missing_ok=True)
