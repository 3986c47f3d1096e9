"""The run folder: everything a run leaves, in files that open in an editor or a spreadsheet; writes are atomic."""

from __future__ import annotations

import contextlib
import json
import re
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import torch

from fedwinnow.errors import DataError, RunError, TakenError, UsageError
from fedwinnow.experiment.settings import Experiment
from fedwinnow.federation.memory import REMEDY, seal, unseal
from fedwinnow.files import (
    FIRST,
    FORMAT,
    Form,
    Maybe,
    check_format,
    demand,
    json_of,
    make_folder,
    parsed,
    replacing,
    settle,
    sweep,
    text_of,
    try_lock,
    write_text,
)
from fedwinnow.mathematics.payload import FlatModel, Payload
from fedwinnow.setting import settings_in

# A finished or broken run may be continued with more rounds, and its scene may lie elsewhere: its hash is compared.
FREE_TO_CHANGE = {"rounds", "scene"}
# What older folders do not name, and what it was then.
ADDED = {name: one.default for name, one in settings_in(Experiment).items() if one.metadata["since"]}
ADDED |= {"method.steady": 0.0}
OWN_TEST = "own_test.csv"
GAIN = "gain.csv"
# Every file that a run makes in its folder, the config last: as long as it is there, the folder is known to be a run's.
MADE = (
    "summary.json",
    "identity.json",
    "encoder.json",
    "encoder.npz",
    "environment.json",
    "input.json",
    "scene.json",
    "scene.csv",
    "scene.npz",
    "rounds.jsonl",
    "clients.csv",
    OWN_TEST,
    GAIN,
    "verdicts.npz",
    "ledger.json",
    "ledger_heads.jsonl",
    "privacy.json",
    "state.safetensors",
    "state.json",
    "frozen.safetensors",
    "calibration.json",
    "report.html",
    "error.txt",
    "config.toml",
)
MEMORY = re.compile(r"\.?\d{6,}-\d+-\d+\.safetensors")  # what a client remembers, whole or half written
MOST_SHOWN = 6  # differences between two configs; a folder of something else differs in everything

# What other parts of the program rely on when they read a run; the rest may be anything.
SCORES: Form = {"accuracy": Maybe(float)}
FORMS: dict[str, Form] = {
    "summary.json": {
        "status": str,
        "rounds?": int,
        "seed": int,
        "method": str,
        "scene": {"hash": str},
        **{f"{name}?": Maybe(SCORES) for name in ("last", "last10", "best", "validation")},
        "test?": Maybe({"confusion?": Maybe([[int]])}),
        "cost?": dict,
    },
    "scene.json": {"hash": str},
    "ledger.json": {
        "keys": {"*": {"exposes": str}},
        "sites": {"*": {"*": {"exposes": str, "count": int, "bytes": int}}},
    },
    "environment.json": {
        "command?": Maybe([str]),
        "packages?": {"*": str},
        "method?": {"summary": str, "citation": str},
    },
}
ROUND: Form = {
    "round": int,
    "participants?": [int],
    "dropped?": dict,
    "ended?": [str],
    "stage?": str,
    **{f"{name}?": Maybe(float) for name in ("accuracy", "balanced_accuracy", "macro_f1", "validation_accuracy")},
    "seconds?": float,
    "evaluation_seconds?": float,
}
FACTS: Form = {
    "round": int,
    "costs": {"*": float},
    "memory": {"*": str},
    "vault": {"*": str},
    "ledger": dict,
    "set_aside": dict,
    "frozen?": [str],
    "violations?": {"*": int},
    "visits?": {"*": int},
}


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
    def locked(self, *, patience: float = 0.0) -> Iterator[None]:
        """Refuse a second process on the same folder; the system frees the lock when a process dies.

        With patience, wait so many seconds for the other process first.
        """
        try:
            make_folder(self.path)
            stream = (self.path / ".lock").open("a+")
        except OSError as problem:
            reason = "it is a file, and a folder is needed" if self.path.is_file() else problem.strerror
            raise DataError(f"--out {self.path}: cannot be written: {reason}. Choose another folder.") from None
        try:
            until = time.monotonic() + patience
            while not (mine := try_lock(stream.fileno())) and time.monotonic() < until:
                time.sleep(0.05)
            if not mine:
                raise TakenError(
                    f"--out {self.path}: another process is working in this folder. Wait, or choose another."
                )
            yield
        finally:
            stream.close()

    # --- what the run is -------------------------------------------------------------------------------------------

    def check(self, config: dict[str, Any], scene_hash: str, *, resume: bool, replaceable: bool = False) -> None:
        """Refuse a folder that holds a run of another config or scene, or any run without --resume."""
        if (self.path / "config.toml").exists():
            differing = [*self.differences(config), *self.other_scene(scene_hash)]
            if differing:
                more = f"; and {len(differing) - MOST_SHOWN} more" if len(differing) > MOST_SHOWN else ""
                raise UsageError(
                    f"--out {self.path} holds a run with another config, or one of another version; differing: "
                    f"{'; '.join(differing[:MOST_SHOWN])}{more}. Choose another folder, or use the same settings"
                    + (", or add --redo, which removes that run." if replaceable else ".")
                )
            if not resume:
                raise UsageError(
                    f"--out {self.path} already holds this run{self.how_far()}. Add --resume to continue it, --redo to "
                    f"start it again, or choose another folder."
                )

    def how_far(self) -> str:
        """How far the run in the folder came, in words; empty where that is not known."""
        summary = self.read_json("summary.json") or {}
        rounds = summary.get("rounds")
        return f", which is {summary['status']} after {rounds} rounds" if rounds is not None else ""

    def take(self, config: dict[str, Any]) -> None:
        """Make the folder that of this config, and sweep out what a killed process left half written."""
        with guarded(self.path):
            sweep(self.path)
            write_text(self.path / "config.toml", tomli_w.dumps({"format": FORMAT, **config}))

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

    def forget_gain(self) -> None:
        """Remove what `fedwinnow gain` said of the run, because the run is another one now."""
        with guarded(self.path):
            (self.path / GAIN).unlink(missing_ok=True)

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
        found = ADDED | flatten(self.settings())
        wanted = flatten(tomllib.loads(tomli_w.dumps(config)))
        keys = sorted((found.keys() | wanted.keys()) - FREE_TO_CHANGE)
        return {key: (found.get(key), wanted.get(key)) for key in keys if found.get(key) != wanted.get(key)}

    def settings(self) -> dict[str, Any]:
        """config.toml without its format, which must be one that we know."""
        path = self.path / "config.toml"
        try:
            table = tomllib.loads(text_of(path))
        except (ValueError, RecursionError) as problem:
            raise DataError(f"{path}: not the settings of a run ({problem}). Restore the file.") from None
        check_format(path, table.pop("format", FIRST))
        demand(str(path), table, {"method": {"kind": str}})
        return table

    def experiment(self) -> Experiment:
        """The experiment of config.toml."""
        table = self.settings()
        try:
            return Experiment(**{**table, "scene": Path(table["scene"]) if "scene" in table else None})
        except (ValueError, TypeError) as problem:
            raise DataError(f"{self.path / 'config.toml'}: not the settings of a run ({problem}).") from None

    # --- the checkpoint --------------------------------------------------------------------------------------------

    def save_state(self, model: FlatModel, weights: Payload, state: Payload, facts: dict[str, Any]) -> None:
        """Model, server memory and facts in one file, so that they always belong together.

        When this returns they are on the disk, and so are the lines of the rounds that were played.
        """
        tensors = {f"model.{name}": value for name, value in model.named(weights).items()}
        tensors |= {f"payload.{key}": value for key, value in weights.items() if key not in ("weights", "counters")}
        tensors |= {f"server.{key}": value for key, value in state.items()}
        with guarded(self.path):
            if (self.path / "rounds.jsonl").exists():
                settle(self.path / "rounds.jsonl")
            with replacing(self.path / "state.safetensors") as stream:
                stream.writelines(seal(tensors, facts))
            self.show_facts(facts)

    def show_facts(self, facts: dict[str, Any]) -> None:
        """The facts of the last checkpoint for people to read; after a kill they may be those of the one before."""
        write_text(self.path / "state.json", json.dumps(facts, sort_keys=True) + "\n", durable=False)

    def save_frozen(self, models: list[FlatModel]) -> None:
        """What is frozen in the models, once: with it and a checkpoint, the whole model can be built without its code.

        Where clients have different models, those after the first are numbered.
        """
        tensors = {
            f"model{'' if number == 1 else f'-{number}'}.{name}": value
            for number, model in enumerate(models, start=1)
            for name, value in model.frozen.items()
        }
        with guarded(self.path), replacing(self.path / "frozen.safetensors") as stream:
            stream.writelines(seal(tensors))

    def refuse_other_frozen(self, facts: dict[str, Any], hashes: list[str]) -> None:
        """Refuse models whose frozen part is not that of the checkpoint; `hashes` are those of `Host.frozen`."""
        if facts.get("frozen", []) != hashes:
            raise DataError(
                f"{self.path}: the frozen part of the model is not the one that this run was made with "
                f"(frozen.safetensors has it). Restore the model's file and its weights, or start again with --redo."
            )

    def load_state(self, model: FlatModel) -> tuple[Payload, Payload, dict[str, Any]] | None:
        """Global weights, server memory and facts of the last checkpoint; None where there is none."""
        path = self.path / "state.safetensors"
        if not path.exists():
            return None
        tensors, facts = unseal(path)
        demand(str(path), facts, FACTS)
        weights = model.payload()
        try:
            with torch.no_grad():
                for name, view in model.named(weights).items():
                    view.copy_(tensors[f"model.{name}"])
        except (KeyError, RuntimeError) as problem:
            raise DataError(f"{path}: not a checkpoint of this run ({problem}). {REMEDY}.") from None
        weights |= {name.removeprefix("payload."): t for name, t in tensors.items() if name.startswith("payload.")}
        state = {name.removeprefix("server."): t for name, t in tensors.items() if name.startswith("server.")}
        return weights, state, facts

    def played(self) -> int:
        """How many rounds the last checkpoint has; 0 where there is none."""
        path = self.path / "state.safetensors"
        if not path.exists():
            return 0
        _, facts = unseal(path)
        demand(str(path), facts, FACTS)
        return int(facts["round"])

    # --- rounds and results ----------------------------------------------------------------------------------------

    def append_round(self, row: dict[str, Any]) -> None:
        """One line, flushed as it happens."""
        with guarded(self.path), (self.path / "rounds.jsonl").open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(row, allow_nan=False) + "\n")

    def rounds(self) -> list[dict[str, Any]]:
        """All rounds so far; a line that a crash cut short is left out."""
        path = self.path / "rounds.jsonl"
        whole, _, _ = text_of(path).rpartition("\n") if path.exists() else ("", "", "")
        lines = whole.split("\n") if whole else []
        return [parsed(path, line, ROUND, f", line {number}") for number, line in enumerate(lines, start=1)]

    def rounds_until(self, last: int) -> list[dict[str, Any]]:
        """The rounds up to one that was played; refused where one of them is missing."""
        kept = [row for row in self.rounds() if row["round"] <= last]
        if [row["round"] for row in kept] != list(range(1, last + 1)):
            raise DataError(
                f"{self.path / 'rounds.jsonl'}: it has {len(kept)} rounds up to round {last}, which was played; "
                f"needed: each of them once. {REMEDY}."
            )
        return kept

    def keep_rounds(self, last: int) -> None:
        """Forget rounds after the last checkpoint, which will be played again; all before it must be there."""
        kept = self.rounds_until(last)
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
        return json_of(path, FORMS.get(name, dict)) if path.exists() else None


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
