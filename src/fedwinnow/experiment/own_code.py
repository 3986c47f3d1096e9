"""Hashes of the code that a user wrote: of files and the files they import, of a notebook's functions, of weights.

The code that the process has loaded counts, not later changes of a file. Hashes contain no memory address, so a
restarted notebook gives the same ones.
"""

from __future__ import annotations

import ast
import dataclasses
import dis
import enum
import functools
import hashlib
import inspect
import sys
import textwrap
import types
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedwinnow import catalogue
from fedwinnow.data.content_hash import add_array, hash_of_file
from fedwinnow.errors import UsageError
from fedwinnow.files import as_written
from fedwinnow.mathematics.losses import OwnLoss
from fedwinnow.models.make_model import in_turn, is_own
from fedwinnow.options import Part

Pieces = dict[str, str]  # a name for messages -> a hash; the first piece is the one that the user gave
PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...), range, slice, torch.dtype, torch.device)
GROUND = {"fedwinnow", "torch", "builtins"}  # packages that are not the user's, like the standard library
INSTALLED = {"site-packages", "dist-packages"}  # folders of installed packages
PASSING = {"logging", "threading", "_thread", "_io", "io", "weakref", "socket"}  # their objects change by being used
# Attributes of a class that Python sets, or that do not change what it does.
BOOKKEEPING = ("__dict__", "__weakref__", "__module__", "__doc__", "_abc_impl")
# Functions that `dataclass` makes from the fields.
GENERATED = {"__init__", "__repr__", "__eq__", "__hash__", "__lt__", "__le__", "__gt__", "__ge__", "__setattr__"}
GENERATED |= {"__delattr__", "__replace__", "__getstate__", "__setstate__"}

# path -> the module that was loaded from the file, and the file's content when it was first read.
LOADED: dict[Path, tuple[types.ModuleType, bytes]] = {}


# --- the parts of an experiment ------------------------------------------------------------------------------------


def code_of_part(part: Part) -> Pieces:
    """The code of a method, a model or another part, and the files that its options name."""
    pieces = code_of_class(type(part))
    for name, value in part.values().items():
        if isinstance(value, Path):
            if value.is_file():
                pieces[f"the file {value.name}"] = hash_of_file(value)
        elif isinstance(value, OwnLoss):
            pieces |= code_of(value.function, "loss")
        elif isinstance(value, Part):
            pieces |= code_of_part(value)
        elif not isinstance(value, PLAIN):
            put(pieces, f"the option {name} of {part.name}", value)
    return pieces


def code_of_spec(family: str, spec: str) -> Pieces:
    """The code of a part that is chosen by name; empty for parts of fedwinnow."""
    name, _ = catalogue.split(family, spec)
    entry = catalogue.find(family, name)
    return {} if entry.module.partition(".")[0] == "fedwinnow" else code_of_class(entry.load())


def code_of_models(spec: Any) -> Pieces:
    """The code, the files and the weights of a model, or of several models that the clients share out in turn."""
    pieces: Pieces = {}
    for one in in_turn(spec):
        given = one["kind"] if isinstance(one, dict) and list(one) == ["kind"] else one
        if isinstance(given, str) and is_own(given):
            pieces |= code_of_file(Path(given.strip().rpartition(".py")[0] + ".py").expanduser())
        elif isinstance(given, str | dict | Part):
            made = catalogue.make("models", given)
            pieces |= code_of_part(made)
        else:
            pieces |= code_of(given)
    return pieces


def code_of(thing: Any, what: str = "model") -> Pieces:
    """The code of a function, a class, a module of torch, or anything else that can be called; `what` it is for."""
    pieces: Pieces = {}
    if isinstance(thing, type):
        return code_of_class(thing)
    if isinstance(thing, types.FunctionType | types.BuiltinFunctionType) and is_ground(thing.__module__ or ""):
        put(pieces, f"the function {thing.__name__}", f"{thing.__module__}.{thing.__qualname__}")
        return pieces
    if isinstance(thing, types.FunctionType):
        if (home := file_of(thing.__module__)) is None:
            put(pieces, f"the function {thing.__name__}", thing)
        else:
            pieces |= code_of_file(home, sys.modules.get(thing.__module__))
            if thing.__closure__ or thing.__name__ == "<lambda>":
                put(pieces, f"the function {thing.__name__}", thing)
        return pieces
    if isinstance(thing, torch.nn.Module):
        return code_of_module(thing)
    name = getattr(thing, "__name__", type(thing).__name__)
    put(pieces, f"the {what} {name}", thing)
    return pieces


def put(pieces: Pieces, name: str, value: Any) -> None:
    """Add a piece that is not a file, before the files that it uses."""
    pieces[name] = ""
    pieces[name] = Walk(pieces).hash_of(value)


def code_of_module(module: torch.nn.Module) -> Pieces:
    """The classes, the weights and the settings of a module of torch."""
    name, pieces = type(module).__name__, Pieces()
    for kind in dict.fromkeys(type(inner) for inner in module.modules()):
        pieces |= code_of_class(kind)
    weights = [*module.named_parameters(), *module.named_buffers()]
    put(pieces, f"the weights of {name}", [(key, value.requires_grad, value) for key, value in weights])
    inner = [(key, type(one).__qualname__, settings_of(one)) for key, one in module.named_modules()]
    put(pieces, f"the settings of {name}", inner)
    return pieces


def settings_of(module: torch.nn.Module) -> dict[str, Any]:
    """The attributes of a module besides weights, inner modules and the training mode."""
    known = ("_parameters", "_buffers", "_modules", "training")
    return {key: value for key, value in vars(module).items() if key not in known}


def code_of_class(kind: type) -> Pieces:
    """The files of a class and its bases, as far as the user wrote them; for a class without a file, its content."""
    pieces: Pieces = {}
    for one in kind.__mro__:
        if is_ground(one.__module__):
            continue
        home = file_of(one.__module__)
        if home is None:
            put(pieces, f"the class {one.__name__}", one)
            continue
        pieces |= code_of_file(home, sys.modules.get(one.__module__))
        if enclosed := [function for function in functions_of(one) if own_cells(function)]:
            put(pieces, f"the class {one.__name__}", [own_cells(function) for function in enclosed])
    return pieces


def functions_of(kind: type) -> list[types.FunctionType]:
    """The functions that the author of a class wrote into it."""
    written = [getattr(value, "__func__", value) for name, value in vars(kind).items() if is_written(name, value)]
    return [value for value in written if isinstance(value, types.FunctionType)]


def own_cells(function: types.FunctionType) -> dict[str, Any]:
    """The variables in a function's closure, without the class, which `super()` adds."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: content(cell) for name, cell in cells if name != "__class__"}


def content(cell: types.CellType) -> Any:
    """The content of a cell; None if it is empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


# --- files ---------------------------------------------------------------------------------------------------------


def top_of(module: str) -> str:
    """The package of a module."""
    return module.partition(".")[0]


def is_ground(module: str) -> bool:
    """Whether a module belongs to fedwinnow, torch or the standard library."""
    return top_of(module) in GROUND or (top_of(module) in sys.stdlib_module_names and module != "__main__")


def file_of(module: str) -> Path | None:
    """The source file of a module; None for a notebook or a main program, of which only the used parts count."""
    if module == "__main__":
        return None
    path = getattr(sys.modules.get(module), "__file__", None)
    return Path(path) if path and path.endswith(".py") and Path(path).is_file() else None


def is_installed(path: Path) -> bool:
    """Whether a file belongs to an installed package."""
    return not INSTALLED.isdisjoint(path.parts)


def home_of(path: Path) -> Path:
    """The folder of a file, or the folder above the package that the file is in."""
    folder = path.parent
    while not is_installed(path) and (folder / "__init__.py").is_file() and folder != folder.parent:
        folder = folder.parent
    return folder


def code_of_file(path: Path, module: types.ModuleType | None = None) -> Pieces:
    """A file and all files of the user that it imports, directly or not."""
    first = path.resolve()
    if not first.is_file():
        raise UsageError(f"{path}: there is no such file.")
    home, pieces = home_of(first), Pieces()
    waiting: list[tuple[Path, types.ModuleType | None, str]] = [(first, module, first.name)]
    seen: set[Path] = set()
    while waiting:
        file, loaded, called = waiting.pop(0)
        if file in seen:
            continue
        seen.add(file)
        source = source_of(file, loaded)
        pieces[name_of(file, home, called)] = hashlib.sha256(as_written(source)).hexdigest()
        waiting += imported(file, source, home)
    return pieces


def hash_of_source(file: Path) -> str | None:
    """The hash of a source file; None if it cannot be read."""
    try:
        return hashlib.sha256(as_written(file.read_bytes())).hexdigest()
    except (OSError, ValueError):
        return None


def name_of(file: Path, home: Path, called: str) -> str:
    """The name of a file in messages: its path in the user's folder, or its module name."""
    return file.relative_to(home).as_posix() if home in file.parents else called


def source_of(file: Path, module: types.ModuleType | None) -> bytes:
    """The content of a file when it was first read, as long as the loaded module is the same."""
    known = LOADED.get(file)
    if known is not None and known[0] is module:
        return known[1]
    source = file.read_bytes()
    if module is not None:
        LOADED[file] = (module, source)
    return source


def imported(file: Path, source: bytes, home: Path) -> Iterator[tuple[Path, types.ModuleType | None, str]]:
    """The user's files that a file imports, with the modules that were loaded from them."""
    for name in dict.fromkeys(names_imported(file, source, home)):
        if top_of(name) in GROUND:
            continue  # names of the standard library stay: a user's file may have the same name
        module = sys.modules.get(name)
        path = getattr(module, "__file__", None)
        found = Path(path).resolve() if path else place_of(name, home) if module is None else None
        if found is None or found.suffix != ".py" or not found.is_file():
            continue
        standard = top_of(name) in sys.stdlib_module_names or is_installed(found)
        if not standard or (home in found.parents and home.name not in INSTALLED):
            yield found, module, name


def place_of(name: str, home: Path) -> Path | None:
    """The file in the user's folder of a module that has not been imported yet."""
    place = home.joinpath(*name.split("."))
    return next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()), None)


def names_imported(file: Path, source: bytes, home: Path) -> Iterator[str]:
    """The dotted names of all modules that the code of a file imports."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return  # running the file raises the error
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from ladder(alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                folder = file.parents[min(node.level, len(file.parents)) - 1]
                inside = folder == home or home in folder.parents
                base = ".".join([*(folder.relative_to(home).parts if inside else ()), *filter(None, [base])])
            yield from ladder(base)
            yield from (f"{base}.{alias.name}".lstrip(".") for alias in node.names)
        elif isinstance(node, ast.Call):
            yield from ladder(name_called_for(node))


def name_called_for(call: ast.Call) -> str:
    """`helpers` of `importlib.import_module("helpers")`."""
    function = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    first = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else None
    return first if function in ("import_module", "__import__") and isinstance(first, str) else ""


def ladder(name: str) -> Iterator[str]:
    """`a`, `a.b` and `a.b.c` for `a.b.c`: importing the last one runs all of them."""
    parts = name.strip(".").split(".")
    yield from (".".join(parts[: place + 1]) for place in range(len(parts)) if parts[0])


# --- values --------------------------------------------------------------------------------------------------------


class Walk:
    """Hashes values by their content, and adds files that they come from to the pieces."""

    def __init__(self, pieces: Pieces) -> None:
        self.pieces = pieces

    def hash_of(self, value: Any) -> str:
        """The hash of one value."""
        self.digest, self.seen = hashlib.sha256(), dict[int, Any]()
        self.add(value)
        return self.digest.hexdigest()

    def note(self, *words: object) -> None:
        """Add words with their lengths, so that ("ab", "c") and ("a", "bc") differ."""
        for word in words:
            text = str(word)
            self.digest.update(f"{len(text)}:{text}".encode(errors="surrogatepass"))

    def add(self, value: Any) -> None:
        """Add one value of any type."""
        if isinstance(value, PLAIN):
            self.note(type(value).__name__, repr(value))
        elif isinstance(value, Path):
            self.note("path", value.as_posix())
        elif id(value) in self.seen:
            self.note("again", list(self.seen).index(id(value)))
        else:
            self.seen[id(value)] = value  # keeping the value keeps its id unique
            self.add_first(value)

    def add_first(self, value: Any) -> None:
        """Add a value that was not added before."""
        if isinstance(value, tuple | list):
            self.note(type(value).__name__, len(value))
            self.add_all(value)
        elif isinstance(value, Mapping):
            self.note("mapping", len(value))
            for key in sorted(value, key=lambda key: (type(key).__name__, str(key))):
                self.add_all((key, value[key]))
        elif isinstance(value, set | frozenset):
            self.note("set", *sorted(Walk(self.pieces).hash_of(one) for one in value))
        elif isinstance(value, np.ndarray | np.generic):
            array = np.asarray(value)
            self.note("array", array.dtype.str, array.shape)
            add_array(self.digest, array)
        elif isinstance(value, torch.Tensor):
            flat = value.detach().cpu().contiguous().reshape(-1)
            self.note("tensor", value.dtype, tuple(value.shape))
            self.digest.update(flat.view(torch.uint8).numpy().data if flat.numel() else b"")
        elif isinstance(value, enum.Enum):
            self.note("enum", type(value).__qualname__, value.name)
        elif isinstance(value, types.ModuleType):
            self.add_module(value)
        elif isinstance(value, types.CodeType):
            self.add_bytecode(value)
        elif isinstance(value, types.FunctionType):
            self.add_function(value)
        elif isinstance(value, type):
            self.add_class(value)
        else:
            self.add_object(value)

    def add_all(self, values: Iterable[Any]) -> None:
        """Add several values."""
        for value in values:
            self.add(value)

    def add_module(self, module: types.ModuleType) -> None:
        """Add the name of a module; a module of the user becomes another piece."""
        self.note("module", module.__name__)
        home = file_of(module.__name__)
        if home is not None and not is_ground(module.__name__) and not is_installed(home):
            self.pieces |= code_of_file(home, module)

    def add_function(self, function: types.FunctionType) -> None:
        """Add a function: its name if it is in a file, otherwise its text; and its closure."""
        self.note("function", function.__name__)
        if (home := file_of(function.__module__)) is not None:
            self.note(function.__module__, function.__qualname__)
            if not is_installed(home) and not is_ground(function.__module__):
                self.pieces |= code_of_file(home, sys.modules.get(function.__module__))
            if function.__name__ == "<lambda>":
                self.add_bytecode(function.__code__)
        else:
            text = text_of(function)
            if text is None:
                self.add_bytecode(function.__code__)
            else:
                self.note("text", text)
            used = {name: function.__globals__[name] for name in globals_of(function.__code__, function.__globals__)}
            self.add_all((function.__defaults__, function.__kwdefaults__, used))
        self.add(own_cells(function))

    def add_bytecode(self, code: types.CodeType) -> None:
        """Add the bytecode of a function whose text is not known, or is shared with other functions."""
        self.note("code", code.co_name, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
        self.note(code.co_flags, code.co_code.hex(), code.co_names, code.co_varnames, code.co_freevars)
        self.add_all(code.co_consts)

    def add_class(self, kind: type) -> None:
        """Add a class: its name if it is in a file, otherwise its bases and its content."""
        self.note("class", kind.__qualname__)
        if is_ground(kind.__module__):
            self.note(kind.__module__)
            return
        if (home := file_of(kind.__module__)) is not None:
            self.note(kind.__module__)
            if not is_installed(home):
                self.pieces |= code_of_file(home, sys.modules.get(kind.__module__))
            return
        self.add_all(base for base in kind.__bases__ if base is not object)
        for name, value in sorted(vars(kind).items()):
            if name not in BOOKKEEPING and is_written(name, value):
                self.note(name)
                self.add(value)

    def add_object(self, value: Any) -> None:
        """Add any other object: its class and its attributes."""
        kind = type(value)
        if isinstance(value, staticmethod | classmethod):
            return self.add(value.__func__)
        if isinstance(value, property):
            return self.add_all((value.fget, value.fset, value.fdel))
        if isinstance(value, types.MethodType):
            return self.add_all((value.__func__, value.__self__))
        if isinstance(value, functools.partial):
            return self.add_all((value.func, value.args, value.keywords))
        if isinstance(value, dataclasses.Field):
            return self.add_all((value.name, str(value.type), value.default, value.default_factory, value.metadata))
        if isinstance(value, types.BuiltinFunctionType):
            return self.note("built in", value.__module__, value.__qualname__)
        if isinstance(value, torch.nn.Module):
            return self.add_all(code_of_module(value).items())
        self.add(kind)
        if top_of(kind.__module__) in PASSING:
            return None
        if hasattr(value, "__array__"):
            return self.add(np.asarray(value))
        slots = [name for one in kind.__mro__ for name in getattr(one, "__slots__", ()) if isinstance(name, str)]
        self.add(
            {name: getattr(value, name) for name in slots if hasattr(value, name)} | getattr(value, "__dict__", {})
        )
        return None


def is_written(name: str, value: Any) -> bool:
    """Whether an attribute of a class was written by its author, not made by Python or by `dataclass`."""
    function = getattr(value, "__func__", value)
    if isinstance(function, types.FunctionType):
        return name not in GENERATED or function.__code__.co_filename not in ("<string>", dataclasses.__file__)
    return not (name.startswith("__") and name.endswith("__")) or name == "__dataclass_fields__"


def text_of(function: types.FunctionType) -> str | None:
    """The text of a function; None if it is not known, and for lambdas, because several can share a line."""
    if function.__name__ == "<lambda>":
        return None
    try:
        return textwrap.dedent(inspect.getsource(function)).replace("\r\n", "\n")
    except (OSError, TypeError, SyntaxError, IndexError):
        return None


def globals_of(code: types.CodeType, known: Mapping[str, Any]) -> list[str]:
    """The global names that a function and its inner functions use."""
    names = {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            names.update(globals_of(inner, known))
    return sorted(name for name in names if name in known)
