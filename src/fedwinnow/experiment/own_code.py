"""The code that a user wrote, as hashes by name: of files with what they import, of a notebook's functions, of weights.

What a process has loaded counts, not what a file has become since. No memory address gets into a hash, so a notebook
that is started again gives the same ones.
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
from fedwinnow.models.make_model import in_turn
from fedwinnow.models.own_model import is_own
from fedwinnow.options import Part
from fedwinnow.package_hash import as_written

Pieces = dict[str, str]  # by a name that a message can use: a hash; the first is what the user gave
PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...), range, slice, torch.dtype, torch.device)
GROUND = {"fedwinnow", "torch", "builtins"}  # packages whose code is not the user's; so is all of Python's own
INSTALLED = {"site-packages", "dist-packages"}  # folders of packages that somebody else wrote
PASSING = {"logging", "threading", "_thread", "_io", "io", "weakref", "socket"}  # whose objects change by being used
# Of a class: what Python itself puts there, and what says nothing about how it works.
BOOKKEEPING = ("__dict__", "__weakref__", "__module__", "__doc__", "_abc_impl")
# What `dataclass` writes into a class by itself, from the fields.
GENERATED = {"__init__", "__repr__", "__eq__", "__hash__", "__lt__", "__le__", "__gt__", "__ge__", "__setattr__"}
GENERATED |= {"__delattr__", "__replace__", "__getstate__", "__setstate__"}

# Files by path: the module that was loaded from it when it was first looked at, and what it held then.
LOADED: dict[Path, tuple[types.ModuleType, bytes]] = {}


# --- the parts of an experiment ------------------------------------------------------------------------------------


def code_of_part(part: Part) -> Pieces:
    """The code of a method, a model or another part, and the files that its options name."""
    pieces = code_of_class(type(part))
    for name, value in part.values().items():
        if isinstance(value, Path):
            if value.is_file():
                pieces[f"the file {value.name}"] = hash_of_file(value)
        elif isinstance(value, Part):
            pieces |= code_of_part(value)
        elif not isinstance(value, PLAIN):
            put(pieces, f"the option {name} of {part.name}", value)
    return pieces


def code_of_spec(family: str, spec: str) -> Pieces:
    """The code of a part that is chosen by name; ours is not looked at, an installed one is."""
    name, _ = catalogue.split(family, spec)
    entry = catalogue.find(family, name)
    return {} if entry.module.partition(".")[0] == "fedwinnow" else code_of_class(entry.load())


def code_of_models(spec: Any) -> Pieces:
    """The code, the files and the weights of a model, or of several that the clients have in turn."""
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


def code_of(thing: Any) -> Pieces:
    """The code of a function, a class, a module of torch, or anything else that can be called."""
    pieces: Pieces = {}
    if isinstance(thing, type):
        return code_of_class(thing)
    if isinstance(thing, types.FunctionType):
        if (home := file_of(thing.__module__)) is None:
            put(pieces, f"the function {thing.__name__}", thing)
        else:
            pieces |= code_of_file(home, module_of(thing.__module__))
            if thing.__closure__ or thing.__name__ == "<lambda>":
                put(pieces, f"the function {thing.__name__}", thing)
        return pieces
    if isinstance(thing, torch.nn.Module):
        return code_of_module(thing)
    name = getattr(thing, "__name__", type(thing).__name__)
    put(pieces, f"the model {name}", thing)
    return pieces


def put(pieces: Pieces, name: str, value: Any) -> None:
    """A piece that is no file; it stands before the files that it uses."""
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
    """What a module has set besides its weights and its inner modules; training sets its mode itself."""
    known = ("_parameters", "_buffers", "_modules", "training")
    return {key: value for key, value in vars(module).items() if key not in known}


def code_of_class(kind: type) -> Pieces:
    """The files of a class and its bases, of what is not ours; a class without a file by what is in it."""
    pieces: Pieces = {}
    for one in kind.__mro__:
        if is_ground(one.__module__):
            continue
        home = file_of(one.__module__)
        if home is None:
            put(pieces, f"the class {one.__name__}", one)
            continue
        pieces |= code_of_file(home, module_of(one.__module__))
        if enclosed := [function for function in functions_of(one) if own_cells(function)]:
            put(pieces, f"the class {one.__name__}", [own_cells(function) for function in enclosed])
    return pieces


def functions_of(kind: type) -> list[types.FunctionType]:
    """The functions that the author of a class wrote into it."""
    written = [getattr(value, "__func__", value) for name, value in vars(kind).items() if is_written(name, value)]
    return [value for value in written if isinstance(value, types.FunctionType)]


def own_cells(function: types.FunctionType) -> dict[str, Any]:
    """What a function closes over, by name; not its own class, which `super()` puts there."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: content(cell) for name, cell in cells if name != "__class__"}


def content(cell: types.CellType) -> Any:
    """What a cell holds; None before it is filled."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


# --- files ---------------------------------------------------------------------------------------------------------


def top_of(module: str) -> str:
    """The package of a module."""
    return module.partition(".")[0]


def is_ground(module: str) -> bool:
    """Whether the code of a module is ours, torch's or Python's own."""
    return top_of(module) in GROUND or (top_of(module) in sys.stdlib_module_names and module != "__main__")


def module_of(name: str) -> types.ModuleType | None:
    """A module that was imported."""
    return sys.modules.get(name)


def file_of(module: str) -> Path | None:
    """The source file of a module; None for a notebook, and for a program, of which only the used parts count."""
    if module == "__main__":
        return None
    path = getattr(module_of(module), "__file__", None)
    return Path(path) if path and path.endswith(".py") and Path(path).is_file() else None


def is_installed(path: Path) -> bool:
    """Whether a file came with a package of somebody else's."""
    return not INSTALLED.isdisjoint(path.parts)


def home_of(path: Path) -> Path:
    """The folder whose files belong to this one: its own, or that of the whole package it is in."""
    folder = path.parent
    while not is_installed(path) and (folder / "__init__.py").is_file() and folder != folder.parent:
        folder = folder.parent
    return folder


def code_of_file(path: Path, module: types.ModuleType | None = None) -> Pieces:
    """A file and everything of the user's that it imports, and that these import."""
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
    """The hash that a file has as a piece of code; None where there is none."""
    try:
        return hashlib.sha256(as_written(file.read_bytes())).hexdigest()
    except (OSError, ValueError):
        return None


def name_of(file: Path, home: Path, called: str) -> str:
    """What a message calls a file: its place in the user's folder, or the module that it is."""
    return file.relative_to(home).as_posix() if home in file.parents else called


def source_of(file: Path, module: types.ModuleType | None) -> bytes:
    """What a file held when it was first looked at, as long as the module that was loaded from it is the same."""
    known = LOADED.get(file)
    if known is not None and known[0] is module:
        return known[1]
    source = file.read_bytes()
    if module is not None:
        LOADED[file] = (module, source)
    return source


def imported(file: Path, source: bytes, home: Path) -> Iterator[tuple[Path, types.ModuleType | None, str]]:
    """The files of the user's that a file imports, with the modules that were loaded from them."""
    for name in dict.fromkeys(names_imported(file, source, home)):
        if top_of(name) in GROUND:
            continue  # a file of the user's may have the name of one of Python's own
        module = module_of(name)
        path = getattr(module, "__file__", None)
        found = Path(path).resolve() if path else place_of(name, home) if module is None else None
        if found is None or found.suffix != ".py" or not found.is_file():
            continue
        standard = top_of(name) in sys.stdlib_module_names or is_installed(found)
        if not standard or (home in found.parents and home.name not in INSTALLED):
            yield found, module, name


def place_of(name: str, home: Path) -> Path | None:
    """Where a module that was not imported yet would be found in the user's folder."""
    place = home.joinpath(*name.split("."))
    return next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()), None)


def names_imported(file: Path, source: bytes, home: Path) -> Iterator[str]:
    """The dotted names of every module that a file may import, anywhere in it."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return  # whoever runs it says so
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
    """`a`, `a.b` and `a.b.c` of `a.b.c`: all of them are run by importing the last."""
    parts = name.strip(".").split(".")
    yield from (".".join(parts[: place + 1]) for place in range(len(parts)) if parts[0])


# --- values --------------------------------------------------------------------------------------------------------


class Walk:
    """Hashes of values by what they are; files that turn up on the way are added to the pieces under their names."""

    def __init__(self, pieces: Pieces) -> None:
        self.pieces = pieces

    def hash_of(self, value: Any) -> str:
        """The hash of one value."""
        self.digest, self.seen = hashlib.sha256(), dict[int, Any]()
        self.add(value)
        return self.digest.hexdigest()

    def note(self, *words: object) -> None:
        """Words that cannot run into their neighbours."""
        for word in words:
            text = str(word)
            self.digest.update(f"{len(text)}:{text}".encode(errors="surrogatepass"))

    def add(self, value: Any) -> None:
        """One value, whatever it is."""
        if isinstance(value, PLAIN):
            self.note(type(value).__name__, repr(value))
        elif isinstance(value, Path):
            self.note("path", value.as_posix())
        elif id(value) in self.seen:
            self.note("again", list(self.seen).index(id(value)))
        else:
            self.seen[id(value)] = value  # and keep it, so that nothing else gets its number
            self.add_first(value)

    def add_first(self, value: Any) -> None:
        """A value that has not come before."""
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
        """Several values."""
        for value in values:
            self.add(value)

    def add_module(self, module: types.ModuleType) -> None:
        """A module by its name; one of the user's becomes a piece of its own."""
        self.note("module", module.__name__)
        home = file_of(module.__name__)
        if home is not None and not is_ground(module.__name__) and not is_installed(home):
            self.pieces |= code_of_file(home, module)

    def add_function(self, function: types.FunctionType) -> None:
        """A function of a file by its name, any other by its text; both with what they close over."""
        self.note("function", function.__name__)
        if (home := file_of(function.__module__)) is not None:
            self.note(function.__module__, function.__qualname__)
            if not is_installed(home) and not is_ground(function.__module__):
                self.pieces |= code_of_file(home, module_of(function.__module__))
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
        """What Python made of a text that nobody has any more, or that several functions share."""
        self.note("code", code.co_name, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
        self.note(code.co_flags, code.co_code.hex(), code.co_names, code.co_varnames, code.co_freevars)
        self.add_all(code.co_consts)

    def add_class(self, kind: type) -> None:
        """A class of a file by its name, any other by its bases and everything in it."""
        self.note("class", kind.__qualname__)
        if is_ground(kind.__module__):
            self.note(kind.__module__)
            return
        if (home := file_of(kind.__module__)) is not None:
            self.note(kind.__module__)
            if not is_installed(home):
                self.pieces |= code_of_file(home, module_of(kind.__module__))
            return
        self.add_all(base for base in kind.__bases__ if base is not object)
        for name, value in sorted(vars(kind).items()):
            if name not in BOOKKEEPING and is_written(name, value):
                self.note(name)
                self.add(value)

    def add_object(self, value: Any) -> None:
        """Anything else: what it is, and what it has."""
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
    """Whether something in a class was written by its author, not made by Python or by `dataclass`."""
    function = getattr(value, "__func__", value)
    if isinstance(function, types.FunctionType):
        return name not in GENERATED or function.__code__.co_filename not in ("<string>", dataclasses.__file__)
    return not (name.startswith("__") and name.endswith("__")) or name == "__dataclass_fields__"


def text_of(function: types.FunctionType) -> str | None:
    """The text of a function where it is known; several lambdas can share a line, so theirs tells nothing."""
    if function.__name__ == "<lambda>":
        return None
    try:
        return textwrap.dedent(inspect.getsource(function)).replace("\r\n", "\n")
    except (OSError, TypeError, SyntaxError, IndexError):
        return None


def globals_of(code: types.CodeType, known: Mapping[str, Any]) -> list[str]:
    """The names of the module that a function uses, and the functions within it."""
    names = {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            names.update(globals_of(inner, known))
    return sorted(name for name in names if name in known)
