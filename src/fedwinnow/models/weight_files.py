"""Reading weights that a user already has into a module, without running code from the file."""

from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

from fedwinnow.errors import DataError, FedwinnowWarning

# Buffers of batch normalisation; a module that keeps no running averages does not have them.
COUNTED = ("running_mean", "running_var", "num_batches_tracked")
NAMED = 3  # how many keys a message lists
OBJECT = re.compile(r"GLOBAL:? ([\w.]+)")  # in torch's refusal: what the file asks to be called


def load_weights(module: nn.Module, path: Path, head: str) -> None:
    """Copy the weights in the file into the module; a head for other classes keeps its initial values, with a warning.

    Every other difference is a DataError, because a network that is loaded by half would train without anyone noticing.
    """
    found, wanted = read_weights(path), module.state_dict()
    heads = [key for key in wanted if key.startswith(f"{head}.")]
    if kept := [key for key in heads if key not in found or found[key].shape[:1] != wanted[key].shape[:1]]:
        classes = len(wanted[kept[0]])
        given = f"has {found[kept[0]].shape[:1].numel()} classes" if kept[0] in found else f"has no {kept[0]}"
        warnings.warn(
            f"{path}: the head ({', '.join(heads)}) keeps its initial values, because the file {given} and the data "
            f"has {classes} classes.",
            FedwinnowWarning,
            stacklevel=2,
        )
        wanted = {key: value for key, value in wanted.items() if key not in heads}
        found = {key: value for key, value in found.items() if key not in heads}
    check_weights(path, found, wanted)
    with torch.no_grad():
        for key, value in wanted.items():
            if key in found:
                value.copy_(found[key])


def check_weights(path: Path, found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    """Refuse a file that lacks a weight, has one of another shape, or has one that the module lacks."""
    # Old files lack the count of batches that batch normalisation keeps; nothing here reads it.
    missing = [key for key in wanted if key not in found and not key.endswith("num_batches_tracked")]
    if missing:
        raise DataError(
            f"{path}: {len(missing)} of {len(wanted)} weights are missing: {some(missing)}. "
            f"The file has {some(found)}. Choose the model that the file was made for."
        )
    if different := [key for key in wanted if key in found and found[key].shape != wanted[key].shape]:
        shapes = [f"{key} {tuple(found[key].shape)}, needed {tuple(wanted[key].shape)}" for key in different]
        hint = " Weights made for ImageNet need stem=large." if different == ["conv1.weight"] else ""
        raise DataError(f"{path}: {len(different)} weights have another shape: {some(shapes, '; ')}.{hint}")
    if extra := [key for key in found if key not in wanted and not key.endswith(COUNTED)]:
        raise DataError(
            f"{path}: {len(extra)} weights have no place in the model: {some(extra)}. "
            "Choose the model that the file was made for."
        )


def some(names: Iterable[str], between: str = ", ") -> str:
    """The first few of many names."""
    every = list(names)
    return between.join(every[:NAMED]) + (f" and {len(every) - NAMED} more" if len(every) > NAMED else "")


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """The tensors in a .safetensors, .pth or .pt file, by name."""
    kind = path.suffix.lower()
    if kind not in (".safetensors", ".pth", ".pt"):
        raise DataError(f"{path} was given as weights; allowed: a .safetensors, .pth or .pt file.")
    if not path.is_file():
        raise DataError(f"{path}: there is no such file. Give the path of a file of weights.")
    try:
        if kind == ".safetensors":
            return load_file(path, device="cpu")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on forms that it then refuses
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as problem:  # torch's own message advises to run the code in the file
        named = OBJECT.search(str(problem))
        raise DataError(
            f"{path}: the file holds more than tensors{f' ({named[1]})' if named else ''}; objects that would run code "
            f"are refused. Ask its maker for a .safetensors file, or for one saved with "
            f"torch.save(model.state_dict(), path)."
        ) from None
    except Exception as problem:  # the readers raise too many kinds of errors for a broken file to list them
        raise DataError(
            f"{path}: not a readable file of weights ({path.stat().st_size:,} bytes): it is cut short, damaged or of "
            f"another kind. Copy or download it again."
        ) from problem
    if not isinstance(content, dict) or not all(
        isinstance(key, str) and isinstance(value, torch.Tensor) for key, value in content.items()
    ):
        inside = f"a dict with {some(map(str, content))}" if isinstance(content, dict) else type(content).__name__
        raise DataError(
            f"{path}: a table of tensors by name is needed, but the file holds {inside}. Save model.state_dict() alone."
        )
    return content
