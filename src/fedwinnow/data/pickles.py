"""Read arrays out of pickle files without the pickle machine: nothing in a file can be executed.

CIFAR's Python version and the human labels of CIFAR-N are published as pickles. This reader interprets the few
operations such files need by itself, on plain values and NumPy arrays, and refuses everything else.
"""

from __future__ import annotations

import io
import pickletools
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedwinnow.errors import DataError

LARGEST = 1 << 30  # bytes of one member of an archive; the published files are far smaller
TORCH_MAGIC = 0x1950A86A20F9469CFC6C

VALUE_NAMES = (
    "INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT STRING BINSTRING SHORT_BINSTRING BINBYTES "
    "SHORT_BINBYTES BINBYTES8 BYTEARRAY8 UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8"
)
VALUES = frozenset(VALUE_NAMES.split())
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
EMPTY: dict[str, type] = {"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_TUPLE": tuple, "EMPTY_SET": set}
SILENT = frozenset({"PROTO", "FRAME", "STOP"})


class Unreadable(Exception):
    """The file is broken or holds what this reader refuses; becomes a DataError that names the file."""


@dataclass
class Pending:
    """An array or element type whose content arrives later, by the BUILD operation."""

    value: Any = None


@dataclass(frozen=True)
class Name:
    """A global that is allowed: only a name, never the thing itself."""

    text: str


def read_pickle(data: bytes, where: str) -> Any:
    """The value in a pickle that holds plain containers, numbers, texts, bytes and arrays."""
    return guarded(where, lambda: Machine().run(io.BytesIO(data)))


def read_torch(path: Path) -> Any:
    """The value in a file of torch.save that holds no tensors, in the zip form or the older one."""
    return guarded(str(path), lambda: read_zipped(path) if zipfile.is_zipfile(path) else read_sequence(path))


def guarded(where: str, read: Callable[[], Any]) -> Any:
    """Run a reader; whatever a broken file makes it stumble over is a DataError."""
    try:
        return read()
    except Unreadable as problem:
        raise DataError(f"{where} is refused: {problem}. Get the file again from its publisher.") from problem
    except (ArithmeticError, LookupError, MemoryError, OSError, RecursionError, TypeError, ValueError) as problem:
        detail = str(problem) or type(problem).__name__
        raise DataError(f"{where} is broken or cut short ({detail}). Get the file again.") from problem
    except (zipfile.BadZipFile, EOFError, AttributeError) as problem:
        raise DataError(f"{where} is broken ({problem}). Get the file again.") from problem


def read_zipped(path: Path) -> Any:
    """The object in `<folder>/data.pkl` of the archive."""
    with zipfile.ZipFile(path) as archive:
        members = [member for member in archive.infolist() if member.filename.endswith("/data.pkl")]
        if len(members) != 1:
            raise Unreadable("the archive has no data.pkl, so torch did not write it")
        if members[0].file_size > LARGEST:
            raise Unreadable(f"its data.pkl would have {members[0].file_size} bytes, more than any published file")
        return Machine().run(io.BytesIO(archive.read(members[0])))


def read_sequence(path: Path) -> Any:
    """The fourth pickle of the older form, after the magic number, the protocol and the system's sizes."""
    stream = io.BytesIO(path.read_bytes())
    if Machine().run(stream) != TORCH_MAGIC:
        raise Unreadable("it does not begin as a file of torch.save does")
    for _ in range(2):
        Machine().run(stream)
    return Machine().run(stream)


class Machine:
    """A stack machine for the harmless part of the pickle language."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self, stream: io.BytesIO) -> Any:
        """Interpret up to the next STOP."""
        for operation, argument, _ in pickletools.genops(stream):
            name = operation.name
            if name in VALUES:
                self.stack.append(argument)
            elif name in CONSTANTS:
                self.stack.append(CONSTANTS[name])
            elif name in EMPTY:
                self.stack.append(EMPTY[name]())
            elif name not in SILENT:
                handler = getattr(self, f"do_{name.lower()}", None)
                if handler is None:
                    raise Unreadable(f"it uses the operation {name}, which plain data does not need")
                handler(argument)
        return finished(self.stack.pop())

    def above_mark(self) -> list[Any]:
        """What was pushed since the last MARK, taken off the stack."""
        start = self.marks.pop()
        taken = [finished(value) for value in self.stack[start:]]
        del self.stack[start:]
        return taken

    def last(self, count: int) -> list[Any]:
        """The last values, taken off the stack."""
        if len(self.stack) < count:
            raise Unreadable("an operation lacks its operands")
        taken = [finished(value) for value in self.stack[-count:]]
        del self.stack[-count:]
        return taken

    def do_mark(self, _: None) -> None:
        self.marks.append(len(self.stack))

    def do_tuple(self, _: None) -> None:
        self.stack.append(tuple(self.above_mark()))

    def do_tuple1(self, _: None) -> None:
        self.stack.append(tuple(self.last(1)))

    def do_tuple2(self, _: None) -> None:
        self.stack.append(tuple(self.last(2)))

    def do_tuple3(self, _: None) -> None:
        self.stack.append(tuple(self.last(3)))

    def do_list(self, _: None) -> None:
        self.stack.append(self.above_mark())

    def do_dict(self, _: None) -> None:
        values: dict[Any, Any] = {}
        fill(values, self.above_mark())
        self.stack.append(values)

    def do_append(self, _: None) -> None:
        values = self.last(1)
        expect(self.stack[-1], list).extend(values)

    def do_appends(self, _: None) -> None:
        values = self.above_mark()
        expect(self.stack[-1], list).extend(values)

    def do_additems(self, _: None) -> None:
        values = self.above_mark()
        expect(self.stack[-1], set).update(values)

    def do_setitem(self, _: None) -> None:
        values = self.last(2)
        fill(self.stack[-1], values)

    def do_setitems(self, _: None) -> None:
        values = self.above_mark()
        fill(self.stack[-1], values)

    def do_put(self, place: int) -> None:
        self.memo[place] = self.stack[-1]

    def do_get(self, place: int) -> None:
        self.stack.append(self.memo[place])

    do_binput = do_long_binput = do_put
    do_binget = do_long_binget = do_get

    def do_memoize(self, _: None) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def do_global(self, text: str) -> None:
        self.stack.append(allowed_name(text.replace(" ", ".")))

    def do_stack_global(self, _: None) -> None:
        self.stack.append(allowed_name(".".join(expect(value, str) for value in self.last(2))))

    def do_reduce(self, _: None) -> None:
        name, arguments = self.last(2)
        self.stack.append(BUILDERS[expect(name, Name).text](*expect(arguments, tuple)))

    def do_build(self, _: None) -> None:
        state = expect(self.last(1)[0], tuple)
        target = expect(self.stack[-1], Pending)
        target.value = swapped(target.value, state) if isinstance(target.value, np.dtype) else array_of(state)


def finished(value: Any) -> Any:
    """A value as it goes into a container: arrays instead of their placeholders."""
    if isinstance(value, Pending):
        if value.value is None:
            raise Unreadable("an array has no content")
        return value.value
    return value


def expect(value: Any, kind: type) -> Any:
    """The value, if it is of the kind an operation needs."""
    if not isinstance(value, kind):
        raise Unreadable(f"a {kind.__name__} was expected where there is a {type(value).__name__}")
    return value


def fill(target: Any, values: list[Any]) -> None:
    """Put keys and values that alternate into a dictionary."""
    expect(target, dict).update(zip(values[::2], values[1::2], strict=True))


# --- what the allowed names mean -----------------------------------------------------------------------------------


def allowed_name(text: str) -> Name:
    """The name of a harmless global; any other is refused."""
    if text not in BUILDERS:
        raise Unreadable(f"it wants to call {text}, which data does not need")
    return Name(text)


def element_type(text: Any, *_: Any) -> Pending:
    """An element type such as 'u1'; numbers, truth values and texts only."""
    dtype = np.dtype(text if isinstance(text, str) else str(text, "latin-1"))
    if dtype.kind not in "biufSU" or dtype.names is not None:
        raise Unreadable(f"it holds an array of {dtype.name}, not of numbers or texts")
    return Pending(dtype)


def swapped(dtype: np.dtype[Any], state: tuple[Any, ...]) -> np.dtype[Any]:
    """The element type with the byte order that its state names."""
    order = expect(state[1], str)
    return dtype if order == "|" else dtype.newbyteorder("<" if order == "<" else ">")


def array_of(state: tuple[Any, ...]) -> np.ndarray[Any, Any]:
    """The array that a state describes: version, shape, element type, column order, content."""
    _, shape, dtype, columns_first, content = state
    return from_buffer(content, dtype, shape, "F" if columns_first else "C")


def from_buffer(content: Any, dtype: Any, shape: Any, order: Any) -> np.ndarray[Any, Any]:
    """An array over these bytes."""
    raw = content.encode("latin-1") if isinstance(content, str) else bytes(content)
    flat = np.frombuffer(raw, expect(dtype, np.dtype))
    return flat.reshape(expect(shape, tuple), order="F" if order == "F" else "C")


def scalar(dtype: Any, content: Any) -> Any:
    """One number of an array's type."""
    return from_buffer(content, dtype, (1,), "C")[0]


def encoded(text: Any, encoding: Any) -> bytes:
    """Bytes that an older protocol wrote as a text."""
    if encoding != "latin1":
        raise Unreadable(f"it encodes bytes as {encoding}")
    return bytes(expect(text, str).encode("latin-1"))


BUILDERS: dict[str, Callable[..., Any]] = {
    "numpy.ndarray": lambda *_: Pending(),
    "numpy.dtype": element_type,
    "_codecs.encode": encoded,
    "collections.OrderedDict": dict,
    "__builtin__.bytes": lambda: b"",  # how older protocols write bytes of length 0
}
for module in ("numpy.core", "numpy._core"):
    BUILDERS |= {
        f"{module}.multiarray._reconstruct": lambda *_: Pending(),
        f"{module}.multiarray.scalar": scalar,
        f"{module}.numeric._frombuffer": from_buffer,
    }
