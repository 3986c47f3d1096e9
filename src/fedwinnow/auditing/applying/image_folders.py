"""Corrected labels of a folder of images: each image goes to its class, in a copy, by links or in place."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Literal

from fedwinnow.auditing.applying.changes import Change
from fedwinnow.data.source_files import existing_folder
from fedwinnow.errors import DataError, UsageError

Link = Literal["copy", "hard", "symbolic"]


def moves_for(root: Path, changes: dict[str, Change]) -> dict[str, str]:
    """Where each image goes: the same path below the folder of its new class; a name that is taken gets a number."""
    existing_folder(root)
    moves: dict[str, str] = {}
    taken: set[str] = set()
    for name, change in changes.items():
        path = PurePosixPath(name)
        place = class_place(root, path)
        if path.parts[place] != change.given or not (root / name).is_file():
            raise DataError(
                f"{root / name}: the audit judged an image of the class '{change.given}' here. The folder has changed "
                "since; audit it again."
            )
        parts = [*path.parts[:place], change.label, *path.parts[place + 1 :]]
        target, number = PurePosixPath(*parts), 1
        while (root / target).exists() or str(target) in taken:
            number += 1
            target = PurePosixPath(*parts).with_stem(f"{path.stem}-{number}")
        taken.add(str(target))
        moves[name] = str(target)
    return moves


def class_place(root: Path, path: PurePosixPath) -> int:
    """Which part of a path is the class: the first, or the second where the data has train/ and test/."""
    split = path.parts[0] == "train" and (root / "test").is_dir() and len(path.parts) > 2
    return 1 if split else 0


def rebuild(root: Path, out: Path, moves: dict[str, str], link: Link) -> None:
    """Copy or link the whole folder to another place, with each moved image in its new place."""
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise UsageError(f"--out {out} exists already and is not an empty folder. Choose another name.")
    if out.resolve().is_relative_to(root.resolve()):
        raise UsageError(f"--out {out} lies within {root}. Choose a folder outside of it.")
    ways: dict[str, Callable[[Path, Path], object]] = {"copy": shutil.copy2, "hard": os.link, "symbolic": os.symlink}
    put = ways[link]
    for parent, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if name.startswith("."):
                continue
            path = Path(parent, name)
            place = path.relative_to(root).as_posix()
            target = out / moves.get(place, place)
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                put(path.resolve(), target)
            except OSError as problem:
                raise DataError(
                    f"{target}: cannot be made ({problem.strerror}). {out} is not complete: delete it. If the disk "
                    f"cannot hold links, use --link copy."
                ) from None


def move_within(root: Path, moves: dict[str, str]) -> None:
    """Move images to other folders below `root`; no file is overwritten."""
    for before, after in moves.items():
        if not (root / before).is_file() or (root / after).exists():
            raise DataError(f"{root / before} cannot be moved to {after}: the folder has changed since.")
    for before, after in moves.items():
        try:
            (root / after).parent.mkdir(parents=True, exist_ok=True)
            (root / before).rename(root / after)
        except OSError as problem:
            raise DataError(
                f"{root / before} cannot be moved to {after} ({problem.strerror}). Some images have moved: the same "
                f"folder with --undo moves them back."
            ) from None
