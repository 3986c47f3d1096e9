"""Corrected labels of a folder of images: a copy, or a tree of links, with each image in the folder of its class."""

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
    """The whole tree at another place, with the moved images moved."""
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise UsageError(f"--out {out} is there already and no empty folder. Choose another name.")
    if out.resolve().is_relative_to(root.resolve()):
        raise UsageError(f"--out {out} lies within {root}. Choose a folder outside of it.")
    put = putter(link)
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
                    f"{target}: cannot be made ({problem.strerror}). {out} is not whole: delete it. Where links are "
                    f"the trouble, use --link copy."
                ) from None


def putter(link: Link) -> Callable[[Path, Path], object]:
    """How a file gets to its new place."""
    ways: dict[str, Callable[[Path, Path], object]] = {"copy": shutil.copy2, "hard": os.link, "symbolic": os.symlink}
    return ways[link]


def move_within(root: Path, moves: dict[str, str]) -> None:
    """Move images to other folders of the same tree; nothing is ever overwritten."""
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
