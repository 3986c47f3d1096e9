"""Image files as features: decoded once into a cached, memory mapped array, or batch by batch if there are many.

Both use `decode`, so the pixels are the same.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedwinnow.data.dataset import Features, Resident, Rows
from fedwinnow.data.dicom_pixels import DicomView, pixels_of
from fedwinnow.data.pace import Pace
from fedwinnow.data.source_files import cache_folder
from fedwinnow.errors import DataError
from fedwinnow.files import replacing

if TYPE_CHECKING:
    from PIL.Image import Image

Pixels = NDArray[np.uint8]
Lazy = Literal["auto", "true", "false"]

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm"})
LARGEST_RESIDENT = 4 * 10**9  # bytes of decoded pixels; above that lazy=auto decodes batch by batch
GREY = frozenset({"1", "L", "LA", "La"})
BATCH = 64
CACHE_VERSION = 1


class BrokenImage(DataError):
    """An image file that cannot be used; it has the path, so that a caller can name the row of the file."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path


@dataclass(frozen=True)
class ImageFrame:
    """The shape that every image of a set gets."""

    height: int
    width: int
    channels: int
    view: str = field(default="", repr=False)  # of DICOM files: windows and frame; empty for pictures

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.height, self.width, self.channels


def load_images(
    paths: Sequence[Path],
    size: int | tuple[int, int] | None,
    lazy: Lazy,
    cache_key_names: Sequence[str],
    channels: int | None = None,
    view: str = "",
) -> Features:
    """The images at these paths, all of one size (a side, or height and width; None: the most common size).

    `cache_key_names` distinguish this set from others; usually they are the paths relative to the data. If size and
    channels are given, no file is opened before it is needed.
    """
    frame = replace(common_frame(paths, size, channels), view=view)
    images = LazyImages(tuple(map(str, paths)), frame)
    if lazy == "true" or (lazy == "auto" and len(paths) * int(np.prod(frame.shape)) > LARGEST_RESIDENT):
        return images
    return Resident(cached_pixels(images, cache_key_names))


def common_frame(paths: Sequence[Path], size: int | tuple[int, int] | None, channels: int | None = None) -> ImageFrame:
    """The size and the number of channels for all these files."""
    if size is not None and channels is not None:
        height, width = (size, size) if isinstance(size, int) else size
        return ImageFrame(height, width, channels)
    found = survey(paths)
    sizes: Counter[tuple[int, int]] = Counter()
    for (height, width, _), count in found.items():
        sizes[height, width] += count
    if size is None:
        size = max(sizes, key=lambda pair: (sizes[pair], pair))
    height, width = (size, size) if isinstance(size, int) else size
    return ImageFrame(height, width, channels or (1 if all(grey for _, _, grey in found) else 3))


def survey(paths: Sequence[Path]) -> Counter[tuple[int, int, bool]]:
    """How many files there are of each height and width, grey or not."""

    def survey_share(first: int) -> Counter[tuple[int, int, bool]]:
        return Counter(look(str(path)) for path in paths[first :: workers()])

    return sum(decoders().map(survey_share, range(workers())), Counter())


@dataclass(frozen=True, eq=False)
class LazyImages:
    """Images that are decoded when they are needed; at most two batches are in memory."""

    paths: tuple[str, ...]
    frame: ImageFrame

    @property
    def shape(self) -> tuple[int, ...]:
        return self.frame.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.uint8)

    def __len__(self) -> int:
        return len(self.paths)

    def take(self, rows: Rows) -> Pixels:
        chosen = [self.paths[row] for row in rows]
        pixels = np.empty((len(chosen), *self.frame.shape), dtype=np.uint8)

        def fill(first: int) -> None:
            for place in range(first, len(chosen), workers()):
                pixels[place] = read(chosen[place], self.frame)

        for _ in decoders().map(fill, range(workers())):
            pass
        return pixels

    def stream(self, batches: Iterable[Rows]) -> Iterator[Pixels]:
        with ThreadPoolExecutor(max_workers=1) as ahead:
            ready: Future[Pixels] | None = None
            for rows in batches:
                following = ahead.submit(self.take, rows)
                if ready is not None:
                    yield ready.result()
                ready = following
            if ready is not None:
                yield ready.result()

    def subset(self, rows: Rows) -> LazyImages:
        return LazyImages(tuple(self.paths[row] for row in rows), self.frame)


def workers() -> int:
    """How many threads decode: Pillow releases the interpreter's lock while it decodes."""
    return min(8, os.cpu_count() or 1)


def decoders() -> ThreadPoolExecutor:
    """The threads that decode; a forked process needs new ones, because threads do not survive a fork."""
    return decoders_of(os.getpid())


@cache
def decoders_of(process: int) -> ThreadPoolExecutor:
    """The threads of one process."""
    return ThreadPoolExecutor(max_workers=workers(), thread_name_prefix=f"images-{process}")


# --- one image -----------------------------------------------------------------------------------------------------


def look(path: str) -> tuple[int, int, bool]:
    """Height, width and whether the image is grey, from the header of the file."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            return image.height, image.width, is_grey(image.mode)
    except Exception as problem:  # Pillow's readers raise nearly anything on a broken file
        raise broken(path, problem) from None


def read(path: str, frame: ImageFrame) -> Pixels:
    """The pixels of one file."""
    from PIL import Image

    try:
        if frame.view:
            return fitted(pixels_of(path, DicomView.read(frame.view)), frame)
        with Image.open(path) as image:
            image.draft("L" if frame.channels == 1 else "RGB", (frame.width, frame.height))
            return decode(image, frame)
    except DataError as problem:
        raise BrokenImage(path, str(problem).removeprefix(f"{path}: ")) from None
    except Exception as problem:  # Pillow's readers raise nearly anything on a broken file
        raise broken(path, problem) from None


def broken(path: str, problem: Exception) -> BrokenImage:
    """The error for a file that Pillow cannot read."""
    reason = "there is no such file" if isinstance(problem, FileNotFoundError) else f"not a readable image ({problem})"
    return BrokenImage(path, f"{reason}. Replace or remove it.")


def is_grey(mode: str) -> bool:
    """Whether Pillow's mode has brightness only."""
    return mode in GREY or mode.startswith("I")


def decode(image: Image, frame: ImageFrame) -> Pixels:
    """An opened image in the frame's channels and size."""
    from PIL import Image as pillow

    if image.mode == "F":
        raise DataError("images of floating point numbers have no known range; save it with 8 or 16 bits.")
    if image.mode.startswith("I"):
        # Pillow would turn everything above 255 white; for 16-bit images the upper byte is used instead.
        image = pillow.fromarray((np.clip(np.asarray(image), 0, 65535).astype(np.uint32) >> 8).astype(np.uint8))
    image = image.convert("L" if frame.channels == 1 else "RGB")
    if image.size != (frame.width, frame.height):
        image = image.resize((frame.width, frame.height), pillow.Resampling.BILINEAR)
    return np.asarray(image, dtype=np.uint8).reshape(frame.shape)


def fitted(pixels: Pixels, frame: ImageFrame) -> Pixels:
    """The image of a DICOM file in the frame's channels and size; each window is scaled by itself."""
    from PIL import Image as pillow

    if pixels.shape[2] != frame.channels:
        if frame.channels == 1 and pixels.shape[2] == 3:
            pixels = np.asarray(pillow.fromarray(pixels).convert("L"))[:, :, None]
        elif pixels.shape[2] == 1:
            pixels = np.repeat(pixels, frame.channels, axis=2)
        else:
            raise DataError(f"an image of {pixels.shape[2]} channels; the others have {frame.channels}.")
    if pixels.shape[:2] == (frame.height, frame.width):
        return pixels
    size = (frame.width, frame.height)
    channels = [pillow.fromarray(np.ascontiguousarray(pixels[:, :, place])) for place in range(frame.channels)]
    return np.stack([np.asarray(one.resize(size, pillow.Resampling.BILINEAR)) for one in channels], axis=2)


# --- the cache -----------------------------------------------------------------------------------------------------


def cached_pixels(images: LazyImages, names: Sequence[str]) -> Pixels:
    """All pixels, mapped from a cache file that is written the first time; in memory if it cannot be written."""
    path = cache_folder() / "images" / f"{cache_key(images, names)}.npy"
    shape = (len(images), *images.frame.shape)
    mapped = open_cached(path, shape)
    if mapped is not None:
        return mapped
    try:
        write_cached(path, images, shape)
        mapped = open_cached(path, shape)
    except OSError:
        mapped = None  # a full or read-only disk must not stop the work
    return images.take(np.arange(len(images))) if mapped is None else mapped


def cache_key(images: LazyImages, names: Sequence[str]) -> str:
    """A key that changes when a file is added, renamed or written, or when the frame differs."""
    digest = hashlib.sha256(
        f"{CACHE_VERSION}/{images.frame}{images.frame.view}/{Path(images.paths[0]).resolve()}".encode(errors="replace")
    )
    for path, name in zip(images.paths, names, strict=True):
        try:
            status = os.stat(path)
        except (OSError, ValueError) as problem:
            raise broken(path, problem) from None
        # A copy may keep the time of the last write, but not the time at which the file was put there.
        times = f"{status.st_mtime_ns}\0{status.st_ctime_ns}"
        digest.update(f"{name}\0{status.st_size}\0{times}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()[:40]


def open_cached(path: Path, shape: tuple[int, ...]) -> Pixels | None:
    """The cached array, or None if it is missing or does not fit."""
    try:
        mapped = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return mapped if mapped.shape == shape and mapped.dtype == np.uint8 else None


def write_cached(path: Path, images: LazyImages, shape: tuple[int, ...]) -> None:
    """Decode batch by batch into one file, so that memory stays small."""
    with replacing(path) as stream:
        header = {"descr": "|u1", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(stream, header)
        pace = Pace(len(images), "images", "read")
        for pixels in images.stream(batches_of(np.arange(len(images)))):
            stream.write(pixels.tobytes())
            pace.add(len(pixels))


def batches_of(rows: Rows, size: int = BATCH) -> Iterator[Rows]:
    """The rows in pieces of at most `size`."""
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def channel_statistics(features: Features, most: int = 1000) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel of pixel / 255, from at most `most` evenly spaced images.

    The sums are whole numbers, so the result is the same for resident and lazy images.
    """
    rows = np.unique(np.linspace(0, len(features) - 1, min(most, len(features))).astype(np.int64))
    total = squares = np.zeros(features.shape[-1], dtype=np.int64)
    for pixels in features.stream(batches_of(rows)):
        flat = pixels.reshape(-1, pixels.shape[-1]).astype(np.int64)
        total, squares = total + flat.sum(axis=0), squares + (flat * flat).sum(axis=0)
    count = len(rows) * int(np.prod(features.shape[:-1]))
    mean = total / count
    variance = np.maximum(squares / count - mean * mean, 0.0)
    std = np.where(variance > 0, np.sqrt(variance), 255.0)
    return tuple((mean / 255).tolist()), tuple((std / 255).tolist())
