"""The run folder: everything a run leaves, in files that open in an editor or a spreadsheet; writes are atomic."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from fedwinnow.atomic import replacing, sweep, write_text
from fedwinnow.errors import DataError, RunError, UsageError
from fedwinnow.federation.flat import FlatModel
from fedwinnow.federation.payload import Payload

# A finished or broken run may be continued with more rounds, and its scene may lie elsewhere: its hash is compared.
FREE_TO_CHANGE = {"rounds", "scene"}
# Every file that a run makes in its folder, the config last: as long as it is there, the folder is known to be a run's.
MADE = (
    "summary.json",
    "identity.json",
    "environment.json",
    "scene.json",
    "scene.npz",
    "rounds.jsonl",
    "clients.csv",
    "verdicts.npz",
    "ledger.json",
    "state.safetensors",
    "state.json",
    "report.html",
    "error.txt",
    "config.toml",
)
MEMORY = re.compile(r"\.?\d{6,}-\d+-\d+\.safetensors")  # what a client remembers, whole or half written
MOST_SHOWN = 6  # differences between two configs; a folder of something else differs in everything


class RunFolder:
    """One run on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.memory = path / "clients"
        self.vault = path / "server"

    @classmethod
    def existing(cls, path: Path) -> RunFolder:
        """The folder of a run that is there; what is not one says what it is instead."""
        if not (path / "config.toml").is_file():
            reason = "it is a file" if path.exists() else "there is nothing there"
            if path.is_dir():
                reason = "it has no config.toml"
            below = sorted(path.glob("*/config.toml"))
            example = f"{below[0].parent}, which is in it" if below else "runs/fedavg-digits-0"
            raise DataError(f"{path}: not a run folder ({reason}). Give the folder of one run, such as {example}.")
        return cls(path)

    # --- one process at a time -------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Refuse a second process on the same folder; the system frees the lock when a process dies."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            stream = (self.path / ".lock").open("a+")
        except OSError as problem:
            reason = "it is a file, and a folder is needed" if self.path.is_file() else problem.strerror
            raise DataError(f"--out {self.path}: cannot be written: {reason}. Choose another folder.") from None
        try:
            if not try_lock(stream.fileno()):
                raise UsageError(
                    f"--out {self.path}: another process is working in this folder. Wait, or choose another."
                )
            yield
        finally:
            stream.close()

    # --- what the run is -------------------------------------------------------------------------------------------

    def check(self, config: dict[str, Any], scene_hash: str, *, resume: bool) -> None:
        """Refuse a folder that holds a run of another config or scene, or any run without --resume."""
        if (self.path / "config.toml").exists():
            differing = [*self.differences(config), *self.other_scene(scene_hash)]
            if differing:
                more = f"; and {len(differing) - MOST_SHOWN} more" if len(differing) > MOST_SHOWN else ""
                raise UsageError(
                    f"--out {self.path} holds a run with another config, or one of another version; differing: "
                    f"{'; '.join(differing[:MOST_SHOWN])}{more}. Choose another folder, or use the same settings."
                )
            if not resume:
                raise UsageError(
                    f"--out {self.path} already holds this run. Add --resume to continue it, or choose another folder."
                )

    def take(self, config: dict[str, Any]) -> None:
        """Make the folder that of this config, and sweep out what a killed process left half written."""
        with guarded(self.path):
            sweep(self.path)
            write_text(self.path / "config.toml", tomli_w.dumps(config))

    @property
    def holds_run(self) -> bool:
        """Whether there is a run in the folder."""
        return (self.path / "config.toml").exists()

    def clear(self) -> None:
        """Remove the run, so that it can start anew; what it has not made stays."""
        with guarded(self.path):
            sweep(self.path)
            for folder in (self.memory, self.vault):
                for path in folder.iterdir() if folder.is_dir() else ():
                    if MEMORY.fullmatch(path.name):
                        path.unlink()
                with contextlib.suppress(OSError):  # absent, or somebody has put something there
                    folder.rmdir()
            for name in MADE:
                (self.path / name).unlink(missing_ok=True)

    def other_scene(self, scene_hash: str) -> list[str]:
        """In what the folder's scene differs, where it has one already."""
        there = (self.read_json("scene.json") or {}).get("hash", scene_hash)
        return [] if there == scene_hash else [f"scene ({there[:12]} there, {scene_hash[:12]} now)"]

    def other_settings(self, config: dict[str, Any]) -> bool:
        """Whether the folder's run was asked for with other settings, which makes it another run.

        A key that one of the two lacks is another version's, and an option of the method may have another default in
        the user's file by now.
        """
        return any(
            there is not None and here is not None and (key == "method.kind" or not key.startswith("method."))
            for key, (there, here) in self.differing(config).items()
        )

    def differences(self, config: dict[str, Any]) -> list[str]:
        """The keys in which the folder's config differs from this one, with both values, in words."""
        return [
            f"{key} ({'absent' if there is None else there} there, {'absent' if here is None else here} now)"
            for key, (there, here) in self.differing(config).items()
        ]

    def differing(self, config: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
        """The keys in which the folder's config differs from this one, with both values; None where one has none."""
        try:
            found = flatten(tomllib.loads((self.path / "config.toml").read_text(encoding="utf-8")))
        except (OSError, ValueError) as problem:
            raise DataError(f"{self.path / 'config.toml'}: cannot be read: {problem}.") from None
        wanted = flatten(tomllib.loads(tomli_w.dumps(config)))
        keys = sorted((found.keys() | wanted.keys()) - FREE_TO_CHANGE)
        return {key: (found.get(key), wanted.get(key)) for key in keys if found.get(key) != wanted.get(key)}

    # --- the checkpoint --------------------------------------------------------------------------------------------

    def save_state(self, model: FlatModel, weights: Payload, state: Payload, facts: dict[str, Any]) -> None:
        """Model, server memory and facts in one file, so that they always belong together."""
        tensors = {f"model.{name}": value for name, value in model.named(weights).items()}
        tensors |= {f"payload.{key}": value for key, value in weights.items() if key not in ("weights", "counters")}
        tensors |= {f"server.{key}": value for key, value in state.items()}
        ready = {name: value.detach().cpu().contiguous() for name, value in sorted(tensors.items())}
        text = json.dumps(facts, sort_keys=True)
        with guarded(self.path):
            with replacing(self.path / "state.safetensors", durable=False) as stream:
                stream.write(save(ready, metadata={"fedwinnow": text}))
            write_text(self.path / "state.json", text + "\n", durable=False)

    def load_state(self, model: FlatModel) -> tuple[Payload, Payload, dict[str, Any]] | None:
        """Global weights, server memory and facts of the last checkpoint; None where there is none."""
        path = self.path / "state.safetensors"
        if not path.exists():
            return None
        try:
            with safe_open(path, framework="pt") as stored:
                facts = json.loads(stored.metadata()["fedwinnow"])
                tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
            weights = model.payload()
            with torch.no_grad():
                for name, view in model.named(weights).items():
                    view.copy_(tensors[f"model.{name}"])
        except (OSError, KeyError, ValueError, TypeError, RuntimeError, SafetensorError) as problem:
            raise DataError(f"{path}: not a checkpoint of this run ({problem}).") from None
        weights |= {name.removeprefix("payload."): t for name, t in tensors.items() if name.startswith("payload.")}
        state = {name.removeprefix("server."): t for name, t in tensors.items() if name.startswith("server.")}
        return weights, state, facts

    # --- rounds and results ----------------------------------------------------------------------------------------

    def append_round(self, row: dict[str, Any]) -> None:
        """One line, flushed as it happens."""
        with guarded(self.path), (self.path / "rounds.jsonl").open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(row, allow_nan=False) + "\n")

    def rounds(self) -> list[dict[str, Any]]:
        """All rounds so far; a line that a crash cut short is left out."""
        path = self.path / "rounds.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
        return [parsed(path, line) for line in lines if line.endswith("\n")]

    def keep_rounds(self, last: int) -> None:
        """Forget rounds after the last checkpoint: they will be played again."""
        kept = [row for row in self.rounds() if row["round"] <= last]
        with guarded(self.path):
            write_text(self.path / "rounds.jsonl", "".join(json.dumps(row) + "\n" for row in kept))

    def write_json(self, name: str, content: Any) -> None:
        """A whole JSON file."""
        with guarded(self.path):
            write_text(self.path / name, json.dumps(content, indent=1, allow_nan=False) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """A whole text file."""
        with guarded(self.path):
            write_text(self.path / name, text)

    def write_arrays(self, name: str, **arrays: Any) -> None:
        """A file of arrays."""
        with guarded(self.path), replacing(self.path / name) as stream:
            np.savez_compressed(stream, allow_pickle=False, **arrays)

    def read_json(self, name: str) -> Any:
        """A whole JSON file; None where there is none."""
        path = self.path / name
        return parsed(path, path.read_text(encoding="utf-8")) if path.exists() else None


def parsed(path: Path, text: str) -> Any:
    """JSON that we wrote; somebody may have changed it since."""
    try:
        return json.loads(text)
    except ValueError as problem:
        raise DataError(f"{path}: not the JSON that a run writes ({problem}).") from None


@contextlib.contextmanager
def guarded(path: Path) -> Iterator[None]:
    """A disk that is full or gone ends the run clearly; what was written before is whole."""
    try:
        yield
    except OSError as problem:
        raise RunError(
            f"{path}: writing failed ({problem.strerror or problem}). The last good round is safe; "
            f"make room and continue with --resume."
        ) from None


def flatten(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def try_lock(handle: int) -> bool:
    """Take a lock that ends with this process; False when another process has it."""
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(handle, 0, os.SEEK_SET)
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
