"""The files of a data source: found, hashed, cached; and arrays out of .npz files, which never run code."""

from __future__ import annotations

import hashlib
import math
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
from numpy.typing import NDArray

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


ALWAYS_ALLOWED = 10**9  # bytes of arrays that a file of any size may hold
MOST_TIMES = 100  # more bytes are allowed up to this many times the size of the file


def read_npz(path: Path, names: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
    """The arrays in the file that have these names, or all of them."""
    existing_file(path)
    name = ""
    try:
        opened = np.load(path, allow_pickle=False, mmap_mode="r")
        if isinstance(opened, np.ndarray):
            raise DataError(f"{path} holds a single array; an .npz file of named arrays is needed (numpy.savez).")
        arrays = {}
        with opened as archive:
            refuse_bomb(path, archive, names)
            for name in archive.files:
                if names is None or name in names:
                    arrays[name] = archive[name]
                    if not isinstance(arrays[name], np.ndarray):
                        raise DataError(f"{path}, array '{name}': the file in the archive is not a NumPy array.")
    except DataError:
        raise
    except Exception as problem:  # zipfile, zlib and numpy raise nearly anything on a broken file
        raise DataError(
            f"{path}{f', array {name!r}' if name else ''}: not readable as an .npz file of plain arrays "
            f"({reason_of(problem, name)}). Write it with numpy.savez from arrays of numbers or texts."
        ) from None
    return arrays


def refuse_bomb(path: Path, archive: Any, names: Sequence[str] | None) -> None:
    """Refuse a small file that would fill the memory, from the sizes in its headers, before it is unpacked."""
    allowed = max(ALWAYS_ALLOWED, MOST_TIMES * path.stat().st_size)
    total = 0
    for info in archive.zip.infolist():
        name = info.filename.removesuffix(".npy")
        if names is None or name in names:
            total += max(info.file_size, stated_size(archive.zip, info))
            if total > allowed:
                raise DataError(
                    f"{path}, array {name!r}: {total / 1e9:.3g} GB would come out of a file of "
                    f"{path.stat().st_size / 1e6:.3g} MB; allowed: {ALWAYS_ALLOWED / 1e9:.3g} GB, or {MOST_TIMES} "
                    f"times the size of the file. If the size is right, write it without compression (numpy.savez)."
                )


def stated_size(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> int:
    """How many bytes an array will take by its header; 0 where the header cannot be read."""
    try:
        with archive.open(info) as stream:
            version = np.lib.format.read_magic(stream)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = read(stream)
            return math.prod(shape) * dtype.itemsize
    except Exception:  # zipfile, zlib and numpy raise nearly anything on a broken file; `read_npz` reports it
        return 0


def reason_of(problem: Exception, name: str) -> str:
    """NumPy's message, or a better one where NumPy speaks of pickle, as it does for every file it does not know."""
    reason = (str(problem) or type(problem).__name__).split("\n")[0]
    if "allow_pickle" in reason:
        return "it holds Python objects, which are never loaded" if name else "it is not an archive of arrays"
    return reason
