"""The cache of encoded samples on this machine: every sample is encoded once per encoder, in whatever data it comes.

A folder belongs to one encoder with its weights, settings and engine. In it, a segment is a pair of files: rows of
half precision (NAME.npy, mapped when read) and a key per row (NAME.ids.npy), which is a hash of the sample's content.
So another split of the same data is found, and a changed sample is not. Segments are written in small parts, the keys
last, and joined at the end: a kill loses at most a part, and the next call goes on from there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedwinnow.data.dataset import Rows
from fedwinnow.data.images import LazyImages
from fedwinnow.data.pace import Pace
from fedwinnow.data.source_files import cache_folder
from fedwinnow.encoders.encoded import Encoded, Half
from fedwinnow.encoders.encoder import Matrix, OpenEncoder
from fedwinnow.encoders.head_input import Scaling
from fedwinnow.errors import DataError, FedwinnowWarning
from fedwinnow.files import make_folder, replacing, sweep, try_lock, write_text

FORMAT = 1  # of the files; another number is another folder
PART = 256  # rows of a part: what a kill may lose, at most
KEY = 16  # bytes
LARGEST = float(np.finfo(np.float16).max)

Keys = list[bytes]


class Stored(Protocol):
    """Samples that can be encoded: images, rows, token ids or texts."""

    def __len__(self) -> int: ...

    def take(self, rows: Rows) -> Any: ...


def features_folder() -> Path:
    """Where all encoded samples of this user are."""
    return cache_folder() / "features"


def cached_bytes() -> int:
    """How large the cache is."""
    folder = features_folder()
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else 0


def clear_cache() -> int:
    """Delete all encoded samples; returns how many bytes they had."""
    size = cached_bytes()
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(features_folder())
    return size


# --- keys ----------------------------------------------------------------------------------------------------------


def keys_of(samples: Stored) -> Keys:
    """A key per sample: a hash of its content; for image files of their path, size and times, which is quick."""
    if isinstance(samples, LazyImages):
        return [file_key(path, f"{samples.frame}{samples.frame.view}") for path in samples.paths]
    found: Keys = []
    for start in range(0, len(samples), PART):
        stop = min(start + PART, len(samples))
        found += map(content_key, samples.take(np.arange(start, stop)))
    return found


def content_key(sample: str | NDArray[Any]) -> bytes:
    """The key of one stored sample."""
    content = sample.encode("utf-8", "surrogatepass") if isinstance(sample, str) else sample.tobytes()
    return hashlib.blake2b(content, digest_size=KEY).digest()


def file_key(path: str, frame: str) -> bytes:
    """The key of an image file in the size that it is decoded to."""
    try:
        status = os.stat(path)
    except OSError as problem:
        raise DataError(f"{path}: cannot be read ({problem.strerror}). Replace or remove it.") from None
    times = f"{status.st_size}\0{status.st_mtime_ns}\0{status.st_ctime_ns}"
    text = f"{os.path.realpath(path)}\0{times}\0{frame}"
    return hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=KEY).digest()


# --- the files of one encoder --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Segment:
    """Rows and their keys."""

    rows: Half
    keys: Keys
    path: Path | None = None  # of the rows; None: in memory only

    def delete(self) -> None:
        """Remove its files, the keys first: rows without keys do not count."""
        if self.path is not None:
            keys_file(self.path).unlink(missing_ok=True)
            self.path.unlink(missing_ok=True)


def keys_file(path: Path) -> Path:
    """The file with the keys of these rows."""
    return path.with_suffix(".ids.npy")


class FeatureCache:
    """The encoded samples of one encoder."""

    def __init__(self, encoder: OpenEncoder, spec: str, kind: str, shape: tuple[int, ...]) -> None:
        self.encoder, self.spec = encoder, spec
        about = f"{FORMAT}/{encoder.hash}/{encoder.engine}/{kind}/{shape}/{encoder.width}"
        self.folder = features_folder() / hashlib.sha256(about.encode()).hexdigest()[:40]
        self.about = {"format": FORMAT, "encoder": spec, "hash": encoder.hash, "engine": encoder.engine, "kind": kind}

    def encoded(self, samples: Stored, workers: int | None = None, keys: Keys | None = None) -> Encoded:
        """These samples as rows of the encoder, from the cache as far as they are in it."""
        keys = keys_of(samples) if keys is None else keys
        segments = self.segments()
        if not covered(keys, segments):
            segments = self.completed(samples, keys, workers or cores())
        places = places_in(segments)
        used = tuple(segment.rows for segment in segments)
        return Encoded(used, np.array([places[key] for key in keys], np.int64), Scaling.plain(self.encoder.width))

    def completed(self, samples: Stored, keys: Keys, workers: int) -> list[Segment]:
        """The segments after everything that was missing has been encoded; one process at a time does that."""
        try:
            make_folder(self.folder)
            with self.locked():
                write_text(self.folder / "about.json", json.dumps(self.about, indent=1) + "\n")
                self.tidy()
                made = self.encode_missing(samples, keys, self.segments(), workers, self.write_part)
                self.join()
                return [*self.segments(), *(segment for segment in made if segment.path is None)]
        except OSError as problem:
            warnings.warn(
                f"{self.folder}: encoded samples cannot be kept here ({problem.strerror or problem}), so they are "
                f"encoded again next time. Make room, or set FEDWINNOW_CACHE to another folder.",
                FedwinnowWarning,
                stacklevel=2,
            )
        known = self.segments()
        return [*known, *self.encode_missing(samples, keys, known, workers, lambda rows, keys: Segment(rows, keys))]

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Wait until no other process encodes with this encoder; the system frees the lock when a process dies."""
        with (self.folder / ".lock").open("a+") as stream:
            while not try_lock(stream.fileno()):
                time.sleep(0.2)
            yield

    def segments(self) -> list[Segment]:
        """Every complete segment; a damaged one is removed, with a warning, and encoded again."""
        found = []
        for path in sorted(self.folder.glob("*.ids.npy")):
            rows = path.with_name(path.name.removesuffix(".ids.npy") + ".npy")
            try:
                keys = np.load(path, allow_pickle=False)
                mapped = np.load(rows, mmap_mode="r", allow_pickle=False)
                fits = mapped.dtype == np.float16 and mapped.shape == (len(keys), self.encoder.width)
                if not fits or keys.dtype != np.uint8 or keys.shape != (len(mapped), KEY):
                    raise ValueError("another form than was written")
            except (OSError, ValueError, EOFError, TypeError) as problem:
                if not rows.exists() and not path.exists():
                    continue  # another process has joined it into a larger one
                warnings.warn(
                    f"{rows}: damaged ({problem}); these samples are encoded again.", FedwinnowWarning, stacklevel=2
                )
                path.unlink(missing_ok=True)
                rows.unlink(missing_ok=True)
                continue
            found.append(Segment(mapped, [key.tobytes() for key in keys], rows))
        return found

    def tidy(self) -> None:
        """Delete what a killed process left half written."""
        sweep(self.folder)
        for path in self.folder.glob("*.npy"):
            if not path.name.endswith(".ids.npy") and not keys_file(path).exists():
                path.unlink()

    def encode_missing(
        self,
        samples: Stored,
        keys: Keys,
        known: Sequence[Segment],
        workers: int,
        keep: Callable[[Half, Keys], Segment],
    ) -> list[Segment]:
        """Encode what no segment has, part by part."""
        there = places_in(known)
        missing = {key: row for row, key in enumerate(keys) if key not in there}  # a sample may be there twice
        rows = np.array(sorted(missing.values()), np.int64)
        pace, made = Pace(len(rows), "samples", "encoded"), []
        with single_threaded(workers) as run:
            for start in range(0, len(rows), PART):
                part = rows[start : start + PART]
                batches = [part[at : at + self.encoder.batch] for at in range(0, len(part), self.encoder.batch)]
                found = run(lambda batch: self.encode_batch(samples, batch), batches)
                made.append(keep(np.concatenate(found), [keys[row] for row in part.tolist()]))
                pace.add(len(part))
        return made

    def encode_batch(self, samples: Stored, rows: Rows) -> Half:
        """One batch, filled up to its full size, so that every sample is computed in the same way."""
        full = np.concatenate([rows, np.repeat(rows[-1:], self.encoder.batch - len(rows))])
        found: Matrix = np.asarray(self.encoder.encode(samples.take(full)), np.float32)[: len(rows)]
        self.refuse_strange(found, rows)
        return found.astype(np.float16)

    def refuse_strange(self, found: Matrix, rows: Rows) -> None:
        """Refuse features of another shape, and such that are no numbers or too large to be stored."""
        if found.shape != (len(rows), self.encoder.width):
            raise DataError(
                f"encoder {self.spec}: gives features of the shape {found.shape} for {len(rows)} samples; needed: "
                f"{(len(rows), self.encoder.width)}, one row of the same width per sample."
            )
        bad = ~np.isfinite(found).all(axis=1)
        if bad.any():
            row = int(rows[np.argmax(bad)])
            raise DataError(
                f"encoder {self.spec}: the features of sample {row + 1} (index {row}) are not finite numbers. Check "
                f"the weights, and whether the encoder fits this data."
            )
        if float(np.abs(found).max(initial=0.0)) > LARGEST:
            raise DataError(
                f"encoder {self.spec}: a feature has the value {float(np.abs(found).max()):.3g}; allowed: up to "
                f"{LARGEST:g}, because features are kept in half precision. Let the encoder give smaller numbers."
            )

    def write_part(self, rows: Half, keys: Keys) -> Segment:
        """Write a part: the rows, then the keys, which make it count."""
        path = self.folder / f"part-{name_of(keys)}.npy"
        with replacing(path) as stream:
            np.save(stream, rows, allow_pickle=False)
        self.write_keys(path, keys)
        return Segment(rows, keys, path)

    def write_keys(self, path: Path, keys: Keys) -> None:
        """The keys of these rows."""
        with replacing(keys_file(path)) as stream:
            np.save(stream, np.frombuffer(b"".join(keys), np.uint8).reshape(-1, KEY), allow_pickle=False)

    def join(self) -> None:
        """Join all parts into one segment."""
        parts = [one for one in self.segments() if one.path is not None and one.path.name.startswith("part-")]
        if not parts:
            return
        keys = [key for part in parts for key in part.keys]
        path = self.folder / f"rows-{name_of(keys)}.npy"
        with replacing(path) as stream:
            header = {"descr": "<f2", "fortran_order": False, "shape": (len(keys), self.encoder.width)}
            np.lib.format.write_array_header_1_0(stream, header)
            for part in parts:
                stream.write(part.rows.tobytes())
        self.write_keys(path, keys)
        for part in parts:
            part.delete()


def name_of(keys: Keys) -> str:
    """A name for a segment."""
    return hashlib.sha256(b"".join(keys)).hexdigest()[:20]


def places_in(segments: Sequence[Segment]) -> dict[bytes, int]:
    """Where each key is, as if the segments were one array."""
    places: dict[bytes, int] = {}
    start = 0
    for segment in segments:
        for place, key in enumerate(segment.keys, start):
            places.setdefault(key, place)
        start += len(segment.keys)
    return places


def covered(keys: Keys, segments: Sequence[Segment]) -> bool:
    """Whether every key is in a segment."""
    there = places_in(segments)
    return all(key in there for key in keys)


def cores() -> int:
    """How many threads encode."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def single_threaded(workers: int) -> Iterator[Callable[[Callable[[Rows], Half], list[Rows]], list[Half]]]:
    """A function that maps over batches with so many threads, in each of which torch uses one thread.

    Whole batches are shared out, and never the work of one batch: so the number of workers changes no bit.
    """
    import torch

    before = torch.get_num_threads()
    with ThreadPoolExecutor(workers, "encoding", initializer=lambda: torch.set_num_threads(1)) as pool:
        try:
            yield lambda function, batches: list(pool.map(function, batches))
        finally:
            torch.set_num_threads(before)
