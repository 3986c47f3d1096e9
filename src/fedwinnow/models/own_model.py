"""A user's own module: `./my_model.py:build`, a file and a function (or class) in it that gives a torch module.

The function is called with those of the arguments `sample_shape`, `classes`, `kind` and `vocabulary` that its
signature names. Without a function name it is `build`.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from fedwinnow.errors import UsageError, memory_shortage
from fedwinnow.models.features import undisturbed
from fedwinnow.models.model import Shape
from fedwinnow.randomness import stream_key

Builder = Callable[..., nn.Module]


def builder_in(spec: str) -> Builder:
    """The function that `file.py:function` names."""
    file, _, function = spec.strip().rpartition(".py")
    path, function = Path(file + ".py").expanduser(), function.removeprefix(":") or "build"
    module = run_file(path)
    builder = getattr(module, function, None)
    if not callable(builder):
        own = [
            name
            for name, value in vars(module).items()
            if callable(value) and getattr(value, "__module__", None) == module.__name__
        ]
        raise UsageError(
            f"{path}: there is no function '{function}' in the file; it has: {', '.join(own) or 'none'}. "
            f"Give the model as {path}:function."
        )
    return builder  # type: ignore[no-any-return]


def run_file(path: Path) -> ModuleType:
    """Run a user's Python file and return it as a module."""
    if not path.is_file():
        raise UsageError(f"model '{path}' was given, but there is no such file.")
    name = f"fedwinnow_own_{stream_key(0, str(path.resolve())):x}"
    plan = importlib.util.spec_from_file_location(name, path)
    assert plan is not None  # Python can load every .py file
    assert plan.loader is not None
    module = importlib.util.module_from_spec(plan)
    sys.modules[name] = module  # dataclasses in the file look their module up
    try:
        plan.loader.exec_module(module)
    except Exception as problem:
        del sys.modules[name]
        raise UsageError(f"{path}: the file cannot be run: {describe(problem, path)}.") from problem
    return module


def build_own(builder: Builder, shape: Shape) -> nn.Module:
    """Call the function and try the module on a batch of zeros, so that a mistake shows before the run."""
    name = getattr(builder, "__name__", str(builder))
    known = asdict(shape)
    given = {}
    for key, parameter in inspect.signature(builder).parameters.items():
        if key in known:
            given[key] = known[key]
        elif parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            raise UsageError(
                f"model '{name}' asks for an argument '{key}'; allowed: {', '.join(known)}, or a default value."
            )
    try:
        module = builder(**given)
    except Exception as problem:
        if (shortage := memory_shortage(problem)) is not None:
            raise shortage from None
        raise UsageError(f"model '{name}' cannot be made: {describe(problem, source_of(builder))}.") from problem
    if not isinstance(module, nn.Module):
        raise UsageError(f"model '{name}' gave a {type(module).__name__}; allowed: a torch.nn.Module.")
    return tried(module, name, shape, source_of(builder))


def tried(module: nn.Module, name: str, shape: Shape, path: Path | None = None) -> nn.Module:
    """The module, on the CPU, after a check that it gives one score per class for a batch of this shape."""
    x = shape.example()
    try:
        with undisturbed(module.cpu()):
            scores: Any = module(x)
            if not isinstance(scores, torch.Tensor) and logits_in(scores) is not None:
                module.register_forward_hook(logits_only)
                scores = logits_in(scores)
    except Exception as problem:
        if (shortage := memory_shortage(problem)) is not None:
            raise shortage from None
        raise UsageError(
            f"model '{name}' fails on a batch of the shape {tuple(x.shape)} ({x.dtype}): {describe(problem, path)}."
        ) from problem
    wanted = (len(x), shape.classes)
    if not isinstance(scores, torch.Tensor) or tuple(scores.shape) != wanted:
        got = tuple(scores.shape) if isinstance(scores, torch.Tensor) else type(scores).__name__
        raise UsageError(
            f"model '{name}' gives {got} for a batch of the shape {tuple(x.shape)}; allowed: {wanted}, "
            "a score for each class, or an object or dictionary that has this as `logits`."
        )
    return module


def logits_in(output: Any) -> Any:
    """The logits in an output that has them by name, as the models of Hugging Face have; None if it has none."""
    return output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)


def logits_only(module: nn.Module, given: tuple[Any, ...], output: Any) -> Any:
    """A hook that replaces the output of a module by its logits; the names of the weights stay as they are."""
    return logits_in(output)


def source_of(builder: Builder) -> Path | None:
    """The file that a function comes from, or None."""
    module = sys.modules.get(getattr(builder, "__module__", ""))
    origin = getattr(module, "__file__", None)
    return None if origin is None else Path(origin)


def describe(problem: Exception, path: Path | None) -> str:
    """The error in a user's file, with its line."""
    line = problem.lineno if isinstance(problem, SyntaxError) else None
    place = problem.__traceback__
    while place is not None and path is not None:
        if Path(place.tb_frame.f_code.co_filename).resolve() == path.resolve():
            line = place.tb_lineno
        place = place.tb_next
    text = " ".join((problem.msg if isinstance(problem, SyntaxError) else str(problem)).split()).rstrip(".")
    return f"{type(problem).__name__}: {text}" + (f" (line {line})" if line else "")
