"""Find the method that a user names: by its name, a table, a Python file, or the method itself."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from fedwinnow import catalogue
from fedwinnow.errors import UsageError
from fedwinnow.federation.method import Method
from fedwinnow.options import Part, build, parse_spec
from fedwinnow.randomness import stream_key

OWN_METHOD = "fedwinnow_own_method_"  # the modules of users' files are named so


def find_method(spec: str | dict[str, Any] | Part) -> Method:
    """The method of this spec; `./my_method.py:key=value` takes it from a file."""
    name, values = parse_spec(spec) if isinstance(spec, str) else ("", {})
    if name.endswith(".py"):
        return build("method", method_in(Path(name)), dict(values))
    made = catalogue.make("methods", spec)
    if not isinstance(made, Method):
        raise UsageError(
            f"{spec} was given as the method, but is a {type(made).__name__}; allowed: a method, by name (`fedwinnow "
            "methods` lists them), by its file, or made in Python."
        )
    return made


def method_in(path: Path) -> type[Method]:
    """The one method class that a file defines."""
    if not path.is_file():
        raise UsageError(f"--method {path}: there is no such file.")
    name = f"{OWN_METHOD}{stream_key(0, str(path.resolve())):x}"
    module_spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module  # dataclasses in the file look their module up
    try:
        module_spec.loader.exec_module(module)
    except Exception as problem:
        del sys.modules[name]
        raise UsageError(f"--method {path}: the file does not import: {type(problem).__name__}: {problem}") from problem
    found = [
        thing
        for thing in vars(module).values()
        if isinstance(thing, type) and issubclass(thing, Method) and thing.__module__ == module.__name__
    ]
    # A class that another class in the file derives from does not count.
    found = [thing for thing in found if not any(thing in other.__mro__[1:] for other in found)]
    if len(found) != 1:
        names = ", ".join(thing.__name__ for thing in found) or "none"
        raise UsageError(f"--method {path}: the file must define one class that derives from Method; found: {names}.")
    if not found[0].name:
        raise UsageError(f'--method {path}: {found[0].__name__} has no name; add `name: ClassVar[str] = "..."`.')
    return found[0]
