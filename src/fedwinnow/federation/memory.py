"""What clients remember between rounds: a file per client, made when first needed, versioned by round.

A version becomes current only when its reply was accepted, and old versions are deleted only after the checkpoint that
no longer needs them. So a run that is killed at any moment finds the memory that belongs to its last checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save

from fedwinnow.errors import DataError, RunError
from fedwinnow.federation.payload import Payload


class Memory:
    """The memories of all clients of a run, on disk."""

    def __init__(self, folder: Path, versions: dict[int, str] | None = None) -> None:
        self.folder = folder
        self.versions = dict(versions or {})

    def read(self, version: str | None) -> Payload:
        """What a client remembers; nothing before its first visit."""
        if version is None:
            return {}
        try:
            return load_file(self.folder / version)
        except (OSError, SafetensorError) as problem:
            raise DataError(f"{self.folder / version}: a client's memory cannot be read ({problem}).") from None

    def write(self, client: int, round_number: int, exchange: int, state: Payload) -> str | None:
        """Store a new version beside the current one."""
        if not state:
            return None
        name = f"{client:06d}-{round_number}-{exchange}.safetensors"
        content = save({key: value.detach().cpu().contiguous() for key, value in state.items()})
        temporary = self.folder / f".{name}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(content)
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

    def prune(self, needed: Iterable[str]) -> None:
        """Delete every version that the last checkpoint does not need."""
        if self.folder.is_dir():
            kept = set(needed)
            for path in self.folder.iterdir():
                if path.name not in kept:
                    path.unlink(missing_ok=True)
