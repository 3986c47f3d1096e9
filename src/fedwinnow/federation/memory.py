"""What clients remember between rounds: a file per client, made when first needed, versioned by round.

A version becomes current only when its reply was accepted, and old versions are deleted only after the checkpoint that
no longer needs them. So a run that is killed at any moment finds the memory that belongs to its last checkpoint. Before
that checkpoint is written, `settle` brings the versions it names to the disk: a power cut changes nothing in this.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fedwinnow.atomic import make_folder, settle
from fedwinnow.errors import RunError
from fedwinnow.federation.tensor_files import seal, unseal
from fedwinnow.mathematics.payload import Payload


class Memory:
    """The memories of all clients of a run, on disk."""

    def __init__(self, folder: Path, versions: dict[int, str] | None = None) -> None:
        self.folder = folder
        self.versions = dict(versions or {})
        self.settled: set[str] = set()  # versions that are known to be on the disk

    def read(self, version: str | None) -> Payload:
        """What a client remembers; nothing before its first visit."""
        return {} if version is None else unseal(self.folder / version)[0]

    def check(self) -> None:
        """Refuse a damaged version now, before anything is computed from it or a client is dropped for it."""
        for version in self.versions.values():
            self.read(version)
        self.settled = set(self.versions.values())

    def write(self, client: int, round_number: int, exchange: int, state: Payload) -> str | None:
        """Store a new version beside the current one."""
        if not state:
            return None
        name = f"{client:06d}-{round_number}-{exchange}.safetensors"
        content = seal(state)
        temporary = self.folder / f".{name}"
        try:
            make_folder(self.folder)
            with temporary.open("wb") as stream:
                stream.writelines(content)
            temporary.replace(self.folder / name)
        except OSError as problem:
            raise RunError(f"{self.folder}: a client's memory cannot be written ({problem.strerror}).") from None
        return name

    def accept(self, client: int, version: str | None) -> None:
        """Make a version the current one."""
        if version is None:
            self.versions.pop(client, None)
        else:
            self.versions[client] = version

    def settle(self, needed: Iterable[str]) -> None:
        """Wait until these versions are on the disk, because a checkpoint is about to need them."""
        names = set(needed)
        new = sorted(names - self.settled)
        try:
            for name in new:
                settle(self.folder / name)
            if new:
                settle(self.folder)
        except OSError as problem:
            raise RunError(f"{self.folder}: a client's memory cannot be written ({problem.strerror}).") from None
        self.settled = names

    def prune(self, needed: Iterable[str]) -> None:
        """Delete every version that the last checkpoint does not need."""
        if self.folder.is_dir():
            kept = set(needed)
            for path in self.folder.iterdir():
                if path.name not in kept:
                    path.unlink(missing_ok=True)
