"""Finding published files: in the user's folders, then in the cache, then on the publisher's server."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwinnow.data.source_files import cache_folder
from fedwinnow.errors import DataError
from fedwinnow.files import replacing, write_text


@dataclass(frozen=True)
class PublishedFile:
    """One file (or unpacked folder) as its publisher names it, and what is known about it."""

    name: str
    url: str | None  # None where the publisher requires a registration
    publisher: str  # the publisher and the page that explains how to get the file
    checksum: str | None = None  # "md5:..." or "sha256:...", as published
    size: int | None = None  # in bytes
    folders: tuple[str, ...] = ("",)  # where to look, below each data folder

    def find(self) -> Path | None:
        """Its path if it exists; nothing is read."""
        return next((path for folder in data_folders() if (path := self.find_below(folder))), None)

    def find_below(self, folder: Path) -> Path | None:
        """Its path in one of the data folders."""
        paths = (folder / below / self.name for below in self.folders)
        return next((path for path in paths if os.path.exists(path)), None)

    def fetch(self) -> Path:
        """Its path after a check; a missing file is downloaded if that is allowed."""
        path = self.find()
        if path is None:
            return download(self)
        verify(self, path)
        return path


def find_first(files: Sequence[PublishedFile]) -> tuple[PublishedFile, Path] | None:
    """The first existing form of the same data, checked; all forms are looked for in a folder before the next one."""
    for folder in data_folders():
        for file in files:
            if (path := file.find_below(folder)) is not None:
                verify(file, path)
                return file, path
    return None


def data_folders() -> list[Path]:
    """The folders that are searched, in order: those of FEDWINNOW_DATA, then the cache."""
    chosen = os.environ.get("FEDWINNOW_DATA", "").split(os.pathsep)
    return [*(Path(folder).expanduser() for folder in chosen if folder), cache_folder() / "data"]


def offline() -> bool:
    """Whether the user has forbidden downloads."""
    return os.environ.get("FEDWINNOW_OFFLINE", "").lower() in ("1", "true", "yes", "on")


def places(file: PublishedFile) -> str:
    """Every folder where a file is looked for, for a message."""
    return ", ".join(str(folder / below) for folder in data_folders() for below in file.folders)


def absent(file: PublishedFile, reason: str = "") -> DataError:
    """The error for a missing file: its name, its publisher, and where to put it."""
    origin = f"{file.publisher} ({file.url})" if file.url else file.publisher
    return DataError(
        f"{file.name} is missing{reason}. Get it from {origin} and put it into one of these folders: {places(file)}. "
        "The environment variable FEDWINNOW_DATA names further folders."
    )


def missing_line(file: PublishedFile, alternatives: Iterable[str] = ()) -> str:
    """One line for `doctor`: what is missing and how to get it."""
    names = " or ".join([file.name, *alternatives])
    where = ", ".join(str(folder / file.folders[0]) for folder in data_folders())
    manual = f"get it from {file.publisher}"
    how = manual if file.url is None else f"forbidden to download; {manual}" if offline() else "downloaded at first use"
    return f"{names}: not in {where} ({how})"


# --- checking ------------------------------------------------------------------------------------------------------


def verify(file: PublishedFile, path: Path) -> None:
    """Refuse a file whose size or checksum is not the published one; a checksum is computed only once."""
    if path.is_dir():
        return
    status = path.stat()
    advice = "Remove it and get it again; unpacked files are read without this check, if you trust them."
    if file.size is not None and status.st_size != file.size:
        raise DataError(f"{path} has {status.st_size} bytes, the published file has {file.size}. {advice}")
    if file.checksum is None:
        return
    seen = {"size": status.st_size, "changed": status.st_mtime_ns, "checksum": file.checksum}
    stamp = cache_folder() / "verified" / f"{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:32]}.json"
    if read_stamp(stamp) == seen:
        return
    kind, _, wanted = file.checksum.partition(":")
    if (found := digest(path, kind)) != wanted:
        raise DataError(f"{path} has the {kind} checksum {found}, the published file has {wanted}. {advice}")
    write_stamp(stamp, seen)


def digest(path: Path, kind: str) -> str:
    """The checksum of a file's content."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()


def read_stamp(path: Path) -> object:
    """The content of a stamp; None if it is missing or broken."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def write_stamp(path: Path, content: object) -> None:
    """Store a result; if the cache cannot be written, it is computed again next time."""
    try:
        write_text(path, json.dumps(content))
    except OSError:
        return


# --- downloading ---------------------------------------------------------------------------------------------------


PLANNING: ContextVar[bool] = ContextVar("planning", default=False)  # whether it is only asked what there is


class NotYetHere(DataError):
    """A file that would be downloaded if it were really needed now."""


@contextmanager
def only_planning() -> Iterator[None]:
    """Nothing is downloaded in this block; a file that would be raises NotYetHere."""
    before = PLANNING.set(True)
    try:
        yield
    finally:
        PLANNING.reset(before)


def download(file: PublishedFile) -> Path:
    """Download a file into the cache; it appears there only when it is complete and its checksum is right."""
    if file.url is None:
        raise absent(file, " and its publisher does not allow programs to download it")
    if offline():
        raise absent(file, " and downloads are forbidden (FEDWINNOW_OFFLINE)")
    if PLANNING.get():
        size = f" ({file.size / 1e6:.0f} MB)" if file.size else ""
        raise NotYetHere(f"{file.name}{size} is not here yet; it will be downloaded from {file.url}.")
    import logging

    import pooch
    from requests.exceptions import RequestException

    pooch.get_logger().setLevel(logging.WARNING)
    folder = cache_folder() / "data" / file.folders[0]
    size = f", {file.size / 1e6:.0f} MB" if file.size else ""
    print(f"downloading {file.name} from {file.url}{size}, to {folder}", file=sys.stderr)
    try:
        path = Path(pooch.retrieve(file.url, known_hash=file.checksum, fname=file.name, path=folder))
    except (RequestException, OSError) as problem:
        raise absent(file, f" and the download failed ({summary(problem)})") from problem
    except ValueError as problem:
        raise absent(file, " and the downloaded file has the wrong checksum") from problem
    verify(file, path)
    return path


def summary(problem: BaseException) -> str:
    """The first line of an exception, short enough for a message; of one that only passes on another, of that one."""
    reason = getattr(problem.args[0] if problem.args else None, "reason", None)  # of urllib3, within requests
    if isinstance(reason, Exception):
        problem = reason
    text = re.sub(r"^<[^>]*>: |^\w+\(.*?\): ", "", (str(problem).splitlines() or [""])[0])
    return text if text and len(text) <= 160 else type(problem).__name__


Arrays = dict[str, NDArray[Any]]


def content_hash(arrays: Arrays) -> str:
    """A sha256 over names, shapes and contents; the kind of file they came from does not matter."""
    total = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        total.update(f"{name}/{array.dtype.str}/{array.shape}".encode())
        total.update(array.data)
    return total.hexdigest()


def converted(name: str, origins: Iterable[Path], make: Callable[[], Arrays]) -> tuple[Arrays, str]:
    """The arrays that `make` reads from these files, mapped from the cache, and their content hash."""
    seen = [[str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns] for path in sorted(origins)]
    key = hashlib.sha256(json.dumps(seen).encode()).hexdigest()[:16]
    folder = cache_folder() / "converted" / f"{name}-{key}"
    if (known := mapped(folder)) is not None:
        return known
    arrays = make()
    total = content_hash(arrays)
    try:
        for title, array in arrays.items():
            with replacing(folder / f"{title}.npy") as stream:
                np.save(stream, array, allow_pickle=False)
    except OSError:
        # The cache cannot be written: use the arrays in memory; the next run has to convert again.
        shutil.rmtree(folder, ignore_errors=True)
        return arrays, total
    write_stamp(folder / "index.json", {"arrays": sorted(arrays), "sha256": total})
    return mapped(folder) or (arrays, total)


def mapped(folder: Path) -> tuple[Arrays, str] | None:
    """The arrays of an earlier conversion; None if there was none or a file is broken."""
    index = read_stamp(folder / "index.json")
    if not isinstance(index, dict):
        return None
    try:
        arrays = {
            title: np.load(folder / f"{title}.npy", mmap_mode="r", allow_pickle=False) for title in index["arrays"]
        }
        return arrays, index["sha256"]
    except (OSError, EOFError, ValueError, KeyError, TypeError):
        return None
