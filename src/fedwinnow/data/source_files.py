"""Finding, hashing and caching the files of a data source."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import platformdirs

from fedwinnow.errors import DataError


def existing_file(path: Path) -> Path:
    """The path, after a check that it is a file that can be opened."""
    try:
        if path.is_dir():
            raise DataError(f"{path} is a folder; a file is needed. For a folder per class use folder:path={path}")
        if path.exists() and not path.is_file():
            raise DataError(f"{path} is a device or a pipe; a file is needed, because it is read more than once.")
        with path.open("rb"):
            return path
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"there is no file {path} (looked from {Path.cwd()}). Check the path.") from None
    except (OSError, ValueError) as problem:
        raise DataError(f"{path} cannot be opened: {problem}.") from None


def existing_folder(path: Path) -> Path:
    """The path, after a check that it is a folder."""
    try:
        if path.is_dir():
            return path
        found = path.exists()
    except (OSError, ValueError) as problem:
        raise DataError(f"{path} cannot be opened: {problem}.") from None
    if found:
        raise DataError(f"{path} is a file; a folder is needed.")
    raise DataError(f"there is no folder {path} (looked from {Path.cwd()}). Check the path.")


def hash_of_files(paths: Sequence[Path]) -> str:
    """sha256 of the content of these files, one after the other."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as stream:
            hashlib.file_digest(stream, lambda: digest)
    return digest.hexdigest()


def hash_of_names(paths: Sequence[Path], names: Sequence[str]) -> str:
    """sha256 of names and sizes, which is quick for very many files."""
    digest = hashlib.sha256()
    for path, name in zip(paths, names, strict=True):
        digest.update(f"{name}\0{os.stat(path).st_size}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def cache_folder() -> Path:
    """Where downloads and decoded images are kept; the environment variable FEDWINNOW_CACHE moves it."""
    return Path(os.environ.get("FEDWINNOW_CACHE") or platformdirs.user_cache_dir("fedwinnow")).expanduser()
