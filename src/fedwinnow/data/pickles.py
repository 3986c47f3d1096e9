"""Read arrays out of pickle files; nothing in a file can be executed.

CIFAR's Python version and the human labels of CIFAR-N are published as pickles. Python's unpickler reads them, within
three limits. A file may use only the operations that plain data needs. A name in it never becomes the thing of that
name, but one of the builders below, which make plain values and arrays of numbers or texts. And a small file cannot
fill the memory or the stack.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedwinnow.errors import DataError

LARGEST = 1 << 30  # bytes of one member of an archive; the published files are far smaller
TORCH_MAGIC = 0x1950A86A20F9469CFC6C

MOST_TUPLES = 5000  # the published files have a few dozen; as a key, very many, one in another, would crash Python
PLAIN_NAMES = (
    "INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT STRING BINSTRING SHORT_BINSTRING BINBYTES "
    "SHORT_BINBYTES BINBYTES8 UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 BYTEARRAY8 NONE NEWTRUE NEWFALSE "
    "EMPTY_LIST EMPTY_DICT EMPTY_TUPLE EMPTY_SET MARK TUPLE TUPLE1 TUPLE2 TUPLE3 LIST DICT APPEND APPENDS ADDITEMS "
    "SETITEM SETITEMS GET BINGET LONG_BINGET PUT BINPUT LONG_BINPUT MEMOIZE GLOBAL STACK_GLOBAL REDUCE BUILD PROTO "
    "FRAME STOP"
)
PLAIN = frozenset(PLAIN_NAMES.split())


class Unreadable(Exception):
    """The file is broken or holds what this reader refuses; becomes a DataError that names the file."""


def read_pickle(data: bytes, where: str) -> Any:
    """The value in a pickle that holds plain containers, numbers, texts, bytes and arrays."""
    return guarded(where, lambda: load(io.BytesIO(data)))


def read_torch(path: Path) -> Any:
    """The value in a file of torch.save that holds no tensors, in the zip form or the older one."""
    return guarded(str(path), lambda: read_zipped(path) if zipfile.is_zipfile(path) else read_sequence(path))


def guarded(where: str, read: Callable[[], Any]) -> Any:
    """Run a reader; anything that a broken file makes it stumble over is a DataError."""
    try:
        return read()
    except Unreadable as problem:
        raise DataError(f"{where} is refused: {problem}. Get the file again from its publisher.") from problem
    except (ArithmeticError, LookupError, MemoryError, OSError, RecursionError, TypeError, ValueError) as problem:
        detail = str(problem) or type(problem).__name__
        raise DataError(f"{where} is broken or cut short ({detail}). Get the file again.") from problem
    except (zipfile.BadZipFile, EOFError, AttributeError, pickle.UnpicklingError) as problem:
        raise DataError(f"{where} is broken ({problem}). Get the file again.") from problem


def read_zipped(path: Path) -> Any:
    """The object in `<folder>/data.pkl` of the archive."""
    with zipfile.ZipFile(path) as archive:
        members = [member for member in archive.infolist() if member.filename.endswith("/data.pkl")]
        if len(members) != 1:
            raise Unreadable("the archive has no data.pkl, so torch did not write it")
        if members[0].file_size > LARGEST:
            raise Unreadable(f"its data.pkl would have {members[0].file_size} bytes, more than any published file")
        return load(io.BytesIO(archive.read(members[0])))


def read_sequence(path: Path) -> Any:
    """The fourth pickle of the older form, after the magic number, the protocol and the system's sizes."""
    stream = io.BytesIO(path.read_bytes())
    if load(stream) != TORCH_MAGIC:
        raise Unreadable("it does not begin as a file of torch.save does")
    for _ in range(2):
        load(stream)
    return load(stream)


def load(stream: io.BytesIO) -> Any:
    """The value of the next pickle in the stream, after a look at its operations."""
    start, size, tuples = stream.tell(), stream.getbuffer().nbytes, 0
    for operation, argument, _ in pickletools.genops(stream):
        if operation.name not in PLAIN:
            raise Unreadable(f"it uses the operation {operation.name}, which plain data does not need")
        # Python's unpickler makes a table as long as the largest place: nine bytes could fill the memory.
        if operation.name.endswith("PUT") and int(argument or 0) > size:
            raise Unreadable(f"it stores a value at place {argument}, but has only {size} bytes")
        tuples += operation.name.startswith("TUPLE")
        if tuples > MOST_TUPLES:
            raise Unreadable(f"it has more than {MOST_TUPLES} tuples")
    return Reader(stream.getvalue()[start : stream.tell()]).load()


class Reader(pickle.Unpickler):
    """Python's unpickler, which knows no class and no function but the builders of this file."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data), encoding="latin1")
        self.budget = Budget(len(data))

    def find_class(self, module: str, name: str) -> Builder:
        """The builder that stands for an allowed name."""
        build = BUILDERS.get(f"{module}.{name}".replace("numpy._core.", "numpy.core."))
        if build is None:
            raise Unreadable(f"it wants to call {module}.{name}, which data does not need")
        return Builder(build, self.budget)


class Budget:
    """How many bytes may still be copied; a file needs each of its texts once."""

    def __init__(self, left: int) -> None:
        self.left = left

    def raw(self, content: Any) -> bytes:
        """The content of an array; Python 2 and older protocols wrote bytes as a text."""
        if isinstance(content, bytes):
            return content
        self.left -= len(expect(content, str | bytearray))
        if self.left < 0:
            raise Unreadable("it copies the same content again and again")
        return content.encode("latin-1") if isinstance(content, str) else bytes(content)


class Builder:
    """What a file may call. A plain function would not do: the BUILD operation could change its attributes."""

    __slots__ = ("budget", "build")

    def __init__(self, build: Callable[..., Any], budget: Budget) -> None:
        self.build, self.budget = build, budget

    def __call__(self, *arguments: Any) -> Any:
        return self.build(self.budget, *arguments)

    def __setstate__(self, state: Any) -> None:
        raise Unreadable("it changes what it calls")


class ElementType:
    """The type of an array's elements, such as 'u1'; NumPy's own class would let a file change its size."""

    __slots__ = ("dtype",)

    def __init__(self, _: Budget, text: Any, *__: Any) -> None:
        text = text if isinstance(text, str) else str(text, "latin-1")
        if not re.fullmatch("[A-Za-z][0-9]{0,9}", text):
            raise Unreadable("the elements of an array are not of numbers or texts")
        self.dtype = np.dtype(text)
        if self.dtype.kind not in "biufSU":
            raise Unreadable(f"it holds an array of {self.dtype.name}, not of numbers or texts")

    def __setstate__(self, state: Any) -> None:
        order = expect(expect(state, tuple)[1], str)
        if order != "|":
            self.dtype = self.dtype.newbyteorder("<" if order == "<" else ">")


class Array(np.ndarray[Any, Any]):
    """An array whose content arrives by the BUILD operation: version, shape, element type, column order, content."""

    budget: Budget

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, columns_first, content = expect(state, tuple)
        raw, dtype = self.budget.raw(content), expect(kind, ElementType).dtype
        fitting = np.frombuffer(raw, dtype).reshape(expect(shape, tuple)).shape  # NumPy's method would trust the shape
        super().__setstate__((1, fitting, dtype, bool(columns_first), raw))  # type: ignore[arg-type]


def empty(budget: Budget, *_: Any) -> Array:
    """An array that waits for its content."""
    array = Array(0)
    array.budget = budget
    return array


def from_buffer(budget: Budget, content: Any, dtype: Any, shape: Any, order: Any) -> Array:
    """An array over these bytes."""
    array = empty(budget)
    array.__setstate__((1, shape, dtype, order == "F", content))
    return array


def scalar(budget: Budget, dtype: Any, content: Any) -> Any:
    """One number or text of an array's type."""
    return from_buffer(budget, content, dtype, (1,), "C")[0].item()


def encoded(budget: Budget, text: Any, encoding: Any) -> bytes:
    """Bytes that an older protocol wrote as a text."""
    if encoding != "latin1":
        raise Unreadable(f"it encodes bytes as {encoding}")
    return budget.raw(expect(text, str))


def expect(value: Any, kind: Any) -> Any:
    """The value, if it is of the kind an operation needs."""
    if not isinstance(value, kind):
        raise Unreadable(f"there is a {type(value).__name__} where an array needs something else")
    return value


BUILDERS: dict[str, Callable[..., Any]] = {
    "numpy.ndarray": empty,
    "numpy.dtype": ElementType,
    "numpy.core.multiarray._reconstruct": empty,
    "numpy.core.multiarray.scalar": scalar,
    "numpy.core.numeric._frombuffer": from_buffer,
    "_codecs.encode": encoded,
    "collections.OrderedDict": lambda _: {},
    "__builtin__.bytes": lambda _: b"",  # how older protocols write bytes of length 0
}
