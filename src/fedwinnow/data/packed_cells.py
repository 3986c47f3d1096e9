"""The cells of one column as one block of bytes: a million short texts take 10 MB instead of 60."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

BETWEEN = "\0"  # no cell has it: a file with zeros is no table of texts


class PackedCells(Sequence[str]):
    """Texts one after the other, in UTF-8, each followed by a zero byte."""

    def __init__(self, content: bytes, count: int) -> None:
        self.content, self.length = content, count

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[str]:
        return iter(self.texts())

    def __contains__(self, cell: object) -> bool:
        return cell in self.texts()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(other) == len(self) and all(map(str.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> list[str]: ...
    def __getitem__(self, place: int | slice) -> str | list[str]:
        if isinstance(place, slice):
            return self.texts()[place]
        row = range(self.length)[place]
        start = 0 if row == 0 else int(self.ends[row - 1]) + 1
        return self.content[start : int(self.ends[row])].decode("utf-8", "surrogatepass")

    def texts(self) -> list[str]:
        """All cells as a list, for work on the whole column."""
        return self.content.decode("utf-8", "surrogatepass").split(BETWEEN)[: self.length]

    @cached_property
    def ends(self) -> NDArray[Any]:
        """Where the texts end; found when a single cell is first asked for."""
        return np.flatnonzero(np.frombuffer(self.content, dtype=np.uint8) == 0)


class Packing:
    """Collects the cells of a column piece by piece."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.count = 0

    def add(self, cells: Sequence[str]) -> None:
        """More cells, none of which has a zero character."""
        self.pieces.append((BETWEEN.join(cells) + BETWEEN).encode("utf-8", "surrogatepass"))
        self.count += len(cells)

    def packed(self) -> PackedCells:
        """The whole column; the pieces are let go."""
        content, self.pieces = b"".join(self.pieces), []
        return PackedCells(content, self.count)


def pack(cells: Iterable[str]) -> Sequence[str]:
    """The cells packed, or as a list where one has a zero character."""
    if isinstance(cells, PackedCells):
        return cells
    listed = list(cells)
    if any(BETWEEN in cell for cell in listed):
        return listed
    packing = Packing()
    packing.add(listed)
    return packing.packed() if listed else listed
