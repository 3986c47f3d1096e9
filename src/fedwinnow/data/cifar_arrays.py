"""Reading CIFAR-10 and CIFAR-100: every published form gives the same arrays."""

from __future__ import annotations

import io
import tarfile
import zipfile
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedwinnow.data.cifar_forms import CifarLayout, Form
from fedwinnow.data.pickles import read_pickle
from fedwinnow.data.published_files import Arrays, converted, find_first
from fedwinnow.errors import DataError

Pixels = NDArray[np.uint8]
PIXELS = 3 * 32 * 32


def load_arrays(layout: CifarLayout) -> tuple[Arrays, str]:
    """`train_images`, `train_labels`, `test_images`, `test_labels` and their content hash; unpacked only once."""
    found = find_first(layout.files())
    file, path = found if found is not None else (layout.forms[0].archive, layout.forms[0].archive.fetch())
    form = next(form for form in layout.forms if file in (form.archive, form.folder))
    members = [path / member for member in (*form.train, *form.test)] if path.is_dir() else [path]
    for member in members:
        if not member.is_file():
            raise DataError(f"{member} is missing; the folder {path} is not complete. Unpack the archive again.")
    return converted(layout.name, members, lambda: read_form(layout, form, path))


def read_form(layout: CifarLayout, form: Form, path: Path) -> Arrays:
    """The arrays from one published form."""
    if form.kind == "pack":
        return read_pack(path)
    contents = read_members(form, path)
    read = read_records if form.kind == "binary" else read_batch
    arrays: Arrays = {}
    for part, members in (("train", form.train), ("test", form.test)):
        blocks = [read(layout, contents[member], f"{path} ({member})") for member in members]
        arrays[f"{part}_images"] = np.concatenate([images for images, _ in blocks])
        arrays[f"{part}_labels"] = np.concatenate([labels for _, labels in blocks])
    return arrays


def read_members(form: Form, path: Path) -> dict[str, bytes]:
    """The content of every member, from the folder or the archive; nothing is unpacked to disk."""
    wanted = {*form.train, *form.test}
    try:
        if path.is_dir():
            contents = {member: (path / member).read_bytes() for member in wanted}
        else:
            contents = {}
            with tarfile.open(path) as archive:
                for entry in archive:
                    stream = archive.extractfile(entry) if entry.isfile() else None
                    if stream is not None and (member := entry.name.rpartition("/")[2]) in wanted:
                        contents[member] = stream.read()
    except (OSError, EOFError, tarfile.TarError, zlib.error) as problem:
        raise DataError(f"{path} cannot be read ({problem}). Get it again from its publisher.") from problem
    if lacking := sorted(wanted - set(contents)):
        raise DataError(f"{path} lacks {', '.join(lacking)}. Get it again from its publisher.")
    return contents


def as_images(flat: Pixels) -> Pixels:
    """From red, green and blue planes to (height, width, channels)."""
    return np.ascontiguousarray(flat.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def read_records(layout: CifarLayout, raw: bytes, where: str) -> tuple[Pixels, Pixels]:
    """Images and labels of a file of the binary version."""
    size = layout.label_bytes + PIXELS
    if not raw or len(raw) % size:
        raise DataError(f"{where}: {len(raw)} bytes, which is not a multiple of {size}, the size of one image.")
    records = np.frombuffer(raw, np.uint8).reshape(-1, size)
    return as_images(records[:, layout.label_bytes :]), records[:, layout.label_bytes - 1].copy()


def read_batch(layout: CifarLayout, raw: bytes, where: str) -> tuple[Pixels, Pixels]:
    """Images and labels of a file of the Python version."""
    batch = read_pickle(raw, where)
    content = batch if isinstance(batch, dict) else {}
    keys = {key.decode("latin-1") if isinstance(key, bytes) else key: key for key in content}
    if "data" not in keys or layout.label_key not in keys:
        raise DataError(f"{where}: no 'data' and '{layout.label_key}' in it, so it is not a batch of {layout.name}.")
    pixels, labels = np.asarray(content[keys["data"]]), np.asarray(content[keys[layout.label_key]])
    fits = labels.ndim == 1 and labels.dtype.kind in "iu" and pixels.shape == (labels.size, PIXELS)
    if not fits or pixels.dtype != np.uint8:
        raise DataError(
            f"{where}: {labels.size} labels and pixels of shape {pixels.shape}; needed: {PIXELS} bytes each."
        )
    return as_images(pixels), labels.astype(np.uint8)


def read_pack(path: Path) -> Arrays:
    """A lossless WebP pack: mosaics of 16 x 16 images, and the labels as .npy files."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {name: array for part in ("train", "test") for name, array in read_pack_part(archive, part).items()}
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error) as problem:
        raise DataError(f"{path} is not a lossless WebP pack of CIFAR-10, or it is broken ({problem}).") from problem


def read_pack_part(archive: zipfile.ZipFile, part: str) -> Arrays:
    """The training or the test part of a pack."""
    from PIL import Image

    labels = np.load(io.BytesIO(archive.read(f"{part}_labels.npy")), allow_pickle=False)
    blocks = []
    for name in sorted(name for name in archive.namelist() if name.startswith(f"{part}/")):
        mosaic = np.asarray(Image.open(io.BytesIO(archive.read(name))).convert("RGB"))
        blocks.append(mosaic.reshape(16, 32, 16, 32, 3).transpose(0, 2, 1, 3, 4).reshape(-1, 32, 32, 3))
    return {f"{part}_images": np.concatenate(blocks)[: len(labels)], f"{part}_labels": labels}
