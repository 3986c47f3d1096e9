"""From what a user wrote to a torch module with reproducible initial weights.

torch is imported by the functions that need it, so that the default model can be named without it.
"""

from __future__ import annotations

import copy
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedwinnow.catalogue import make
from fedwinnow.errors import UsageError
from fedwinnow.models.model import Model, Shape
from fedwinnow.options import split_outside_quotes
from fedwinnow.randomness import stream_key

if TYPE_CHECKING:
    from torch import nn

ModelSpec = str | dict[str, Any] | Model | Callable[..., Any] | None

LARGEST_SMALL_IMAGE = 32  # pixels
BUILDING = threading.Lock()  # all threads share the generator that fills new layers


def model_for(shape: Shape) -> str:
    """The model for data of this shape when the user names none."""
    if shape.kind == "tokens":
        return "text"
    if shape.kind == "rows" or shape.smaller_side < 4:
        return "mlp"
    return "lenet" if shape.smaller_side <= LARGEST_SMALL_IMAGE else "resnet18"


def in_turn(spec: ModelSpec | list[ModelSpec] | tuple[ModelSpec, ...]) -> list[ModelSpec]:
    """The models that the clients have in turn: `lenet+mlp` or a list of specs; a single spec gives a list of one.

    A + separates only if a model begins after it, so that the path in `lenet:weights=/a+b/w.safetensors` stays whole. A
    path that ends like the name of a model (`/b+mlp`) needs quotes, as a path with a comma does.
    """
    if isinstance(spec, list | tuple):
        return list(spec)
    if not isinstance(spec, str) or names_file(spec):
        return [spec]
    first, *others = split_outside_quotes(spec, "+", spec)
    found = [first]
    for piece in others:
        if begins_model(piece):
            found.append(piece)
        else:
            found[-1] += f"+{piece}"
    return [piece.strip() for piece in found]


def begins_model(piece: str) -> bool:
    """Whether a text that follows a + looks like a model: a name, perhaps with options, or the user's own file."""
    return re.fullmatch(r"\s*[A-Za-z_][\w-]*\s*(:.*)?", piece) is not None or is_own(piece)


def names_file(spec: str) -> bool:
    """Whether a text is the path of an existing model file; its name may contain a +."""
    return is_own(spec) and Path(spec.rpartition(".py")[0] + ".py").expanduser().is_file()


def make_model(spec: ModelSpec, shape: Shape, seed: int = 0) -> nn.Module:
    """A module on the CPU whose initial weights depend only on the seed.

    `spec` is `name:key=value`, a table with `kind`, `./file.py:function`, a model, a function or class (see
    `own_model`), a torch module (copied, with its weights), or None for the default of the data.
    """
    import torch

    build = builder_for(model_for(shape) if spec is None else spec)
    # Only the CPU's generator is seeded, and the caller gets its own state back.
    with BUILDING, torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(stream_key(seed, "initial weights") & (2**63 - 1))
        return build(shape)


def builder_for(spec: Any) -> Callable[[Shape], nn.Module]:
    """The function that makes the module, for each form in which a user may give it."""
    from torch import nn

    from fedwinnow.models import own_model

    if isinstance(spec, nn.Module):
        return lambda shape: own_model.tried(copy.deepcopy(spec), type(spec).__name__, shape)
    if isinstance(spec, dict) and list(spec) == ["kind"]:
        spec = spec["kind"]  # a table may name a file too
    if isinstance(spec, str) and is_own(spec):
        return lambda shape: own_model.build_own(own_model.builder_in(spec), shape)
    if isinstance(spec, str | dict | Model):
        part = make("models", spec)
        if not isinstance(part, Model):
            raise UsageError(f"'{part.name}' is not a model.")
        return part.build
    if callable(spec):
        return lambda shape: own_model.build_own(spec, shape)
    raise UsageError(
        f"{spec!r} was given as model; allowed: a text like name:key=value or file.py:function, a table with a kind, "
        "a function that gives a torch module, or a torch module."
    )


def is_own(spec: str) -> bool:
    """Whether a text names a Python file instead of a model of the catalogue."""
    return re.fullmatch(r".+\.py(:\w*)?", spec.strip()) is not None
