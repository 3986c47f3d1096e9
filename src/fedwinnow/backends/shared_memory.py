"""Memory shared by several processes: arrays that are written once, and arenas for the payloads of messages.

The process that makes a segment also removes it. If that process is killed, Python's resource tracker removes it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedwinnow.errors import RunError
from fedwinnow.mathematics.payload import Payload

ALIGNMENT = 64  # bytes, as torch aligns its own tensors
SMALLEST_ARENA = 1 << 16
RAM_DISK = Path("/dev/shm")  # where Linux keeps segments

Entry = list[Any]  # key, dtype, shape, stride, offset: one tensor in an arena, as JSON


def new_segment(size: int) -> SharedMemory:
    """A segment of at least this size; an error if the system has no room for it."""
    try:
        # With the number of the process, to see whose it is; macOS allows at most 30 letters.
        name = f"fedwinnow_{os.getpid():x}_{secrets.token_hex(5)}"
        segment = SharedMemory(name, create=True, size=max(size, 1))
    except OSError as problem:
        raise no_room(size, problem) from None
    try:
        reserve(segment)
    except OSError as problem:
        remove_segment(segment)
        raise no_room(size, problem) from None
    return segment


def reserve(segment: SharedMemory) -> None:
    """Take the memory now: on Linux, writing to a full RAM disk would kill the process later."""
    path = RAM_DISK / segment.name
    if hasattr(os, "posix_fallocate") and path.exists():
        handle = os.open(path, os.O_RDWR)
        try:
            os.posix_fallocate(handle, 0, segment.size)
        finally:
            os.close(handle)


def no_room(size: int, problem: OSError) -> RunError:
    """The error for a machine or container without enough shared memory."""
    return RunError(
        f"--backend processes: no room for {size / 1e6:.1f} MB of shared memory ({problem.strerror or problem}). "
        f"Give the machine more (a container: docker run --shm-size=2g), or use --backend serial."
    )


def remove_segment(segment: SharedMemory) -> None:
    """Close a segment and remove it from the system."""
    segment.close()
    segment.unlink()


def buffer_of(segment: SharedMemory) -> memoryview:
    """The memory of an open segment."""
    assert segment.buf is not None
    return segment.buf


# --- arrays --------------------------------------------------------------------------------------------------------


class SharedArrays:
    """Arrays that every worker may read; each is stored once, even if it is described several times."""

    def __init__(self) -> None:
        self.segments: list[SharedMemory] = []
        self.known: dict[int, tuple[Any, dict[str, Any]]] = {}  # by id; keeps the object, so that no other gets its id

    def describe(self, array: NDArray[Any]) -> dict[str, Any]:
        """The place of this array for a worker, as JSON."""
        if id(array) not in self.known:
            self.known[id(array)] = (array, mapped_file(array) or self.store(array))
        return self.known[id(array)][1]

    def describe_texts(self, texts: tuple[str, ...]) -> dict[str, Any]:
        """The same for many texts, such as the paths of a million images."""
        if id(texts) not in self.known:
            joined = "\0".join(texts).encode("utf-8", "surrogatepass")
            self.known[id(texts)] = (texts, self.store(np.frombuffer(joined, np.uint8)))
        return self.known[id(texts)][1]

    def store(self, array: NDArray[Any]) -> dict[str, Any]:
        """Copy an array into a segment."""
        segment = new_segment(array.nbytes)
        self.segments.append(segment)
        np.ndarray(array.shape, array.dtype, buffer=segment.buf)[...] = array
        return {"segment": segment.name, "dtype": array.dtype.str, "shape": array.shape}

    def close(self) -> None:
        """Remove all of them."""
        self.known.clear()
        while self.segments:
            remove_segment(self.segments.pop())


def mapped_file(array: NDArray[Any]) -> dict[str, Any] | None:
    """The file of an array that is a memory map of that file; None for any other array."""
    import mmap

    whole = isinstance(array, np.memmap) and isinstance(array.base, mmap.mmap) and array.flags.c_contiguous
    if not whole or array.mode != "r" or array.filename is None:  # type: ignore[attr-defined]
        return None
    path = str(Path(array.filename).resolve())  # type: ignore[attr-defined]
    return {"file": path, "offset": array.offset, "dtype": array.dtype.str, "shape": array.shape}  # type: ignore[attr-defined]


class OpenedArrays:
    """A worker's side of shared arrays; each is opened once."""

    def __init__(self) -> None:
        self.segments: list[SharedMemory] = []
        self.known: dict[str, Any] = {}

    def open(self, described: dict[str, Any]) -> NDArray[Any]:
        """The array of a description, read only."""
        key = str(described)
        if key not in self.known:
            self.known[key] = self.map(described)
        array: NDArray[Any] = self.known[key]
        return array

    def map(self, described: dict[str, Any]) -> NDArray[Any]:
        """A view of the shared memory or of the file."""
        shape, dtype = tuple(described["shape"]), np.dtype(described["dtype"])
        if "file" in described:
            return np.memmap(described["file"], dtype, "r", described["offset"], shape)
        self.segments.append(SharedMemory(described["segment"]))
        array: NDArray[Any] = np.ndarray(shape, dtype, buffer=self.segments[-1].buf)
        array.flags.writeable = False
        return array

    def texts(self, described: dict[str, Any]) -> tuple[str, ...]:
        """The texts of a description."""
        key = f"texts of {described}"
        if key not in self.known:
            joined = self.open(described).tobytes().decode("utf-8", "surrogatepass")
            self.known[key] = tuple(joined.split("\0"))
        texts: tuple[str, ...] = self.known[key]
        return texts

    def close(self) -> None:
        """Close all of them, except those still in use."""
        self.known.clear()
        while self.segments:
            with contextlib.suppress(BufferError):
                self.segments.pop().close()


# --- payloads ------------------------------------------------------------------------------------------------------


def plan(payload: Payload, start: int = 0) -> tuple[list[Entry], int]:
    """The place of each tensor in an arena, and where the last one ends."""
    entries: list[Entry] = []
    for key, value in payload.items():
        # The layout of a copy: a slice becomes dense, but a permuted tensor stays permuted, so sums keep their order.
        stride = torch.empty_like(value, device="meta").stride()
        entries.append([key, str(value.dtype).removeprefix("torch."), list(value.shape), list(stride), start])
        start += -(-value.numel() * value.element_size() // ALIGNMENT) * ALIGNMENT
    return entries, start


def write(buffer: memoryview, payload: Payload, entries: list[Entry]) -> None:
    """Copy the tensors of a payload to their planned places."""
    for entry in entries:
        place(buffer, entry).copy_(payload[entry[0]].detach())


def read(buffer: memoryview, entries: list[Entry]) -> Payload:
    """Copies of the tensors, because the arena will be used again."""
    return {entry[0]: torch.empty_like(place(buffer, entry)).copy_(place(buffer, entry)) for entry in entries}


def place(buffer: memoryview, entry: Entry) -> Tensor:
    """A view of a tensor in an arena."""
    _, dtype, shape, stride, offset = entry
    count = int(np.prod(shape, dtype=np.int64))
    kind = getattr(torch, dtype)
    flat = torch.frombuffer(buffer, dtype=kind, count=count, offset=offset) if count else torch.empty(0, dtype=kind)
    return flat.as_strided(shape, stride)


class Arena:
    """Shared memory for the payload of a message, used again for the next one; it grows when one does not fit."""

    def __init__(self, number: int, size: int) -> None:
        self.number = number
        self.segment = new_segment(size)

    @property
    def size(self) -> int:
        return self.segment.size

    @property
    def buffer(self) -> memoryview:
        return buffer_of(self.segment)

    @property
    def address(self) -> list[Any]:
        """How a worker finds it: the number stays, the name changes when it grows."""
        return [self.number, self.segment.name]

    def grow(self, size: int) -> None:
        """Make room for this many bytes; the content is lost."""
        if size > self.size:
            larger = new_segment(max(size, 2 * self.size))
            remove_segment(self.segment)
            self.segment = larger


class Arenas:
    """The arenas of a run; there are as many as messages are open at once."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.all: list[Arena] = []
        self.free: list[Arena] = []

    def take(self, size: int) -> Arena:
        """An arena with room for this many bytes."""
        with self.lock:
            fitting = [arena for arena in self.free if arena.size >= size]
            if self.free:
                arena = min(fitting, key=lambda one: one.size) if fitting else max(self.free, key=lambda one: one.size)
                arena.grow(size)
                self.free.remove(arena)
                return arena
            self.all.append(Arena(len(self.all), max(size, SMALLEST_ARENA)))
            return self.all[-1]

    def give_back(self, arenas: list[Arena]) -> None:
        """Free these arenas."""
        with self.lock:
            self.free.extend(arenas)

    def close(self) -> None:
        """Remove all of them."""
        with self.lock:
            self.free.clear()
            while self.all:
                remove_segment(self.all.pop().segment)


class Mappings:
    """A worker's side of the arenas; each is opened when it is first used, and again when it has grown."""

    def __init__(self) -> None:
        self.opened: dict[int, SharedMemory] = {}

    def buffer(self, address: list[Any]) -> memoryview:
        """The memory at an address."""
        number, name = address
        if number not in self.opened or self.opened[number].name != name:
            if number in self.opened:
                self.opened.pop(number).close()
            self.opened[number] = SharedMemory(name)
        return buffer_of(self.opened[number])

    def close(self) -> None:
        """Close all of them."""
        while self.opened:
            self.opened.popitem()[1].close()
