"""Features of samples for any module: the input of its last linear layer, recorded by a hook.

A module needs no special output for this, so a user's own module works with every method.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from fedwinnow.errors import UsageError

Call = tuple[nn.Linear, torch.Tensor]


def logits_and_features(model: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """One forward pass: the scores (samples, classes) and the input of the last linear layer (samples, features)."""
    logits, _, features = through_head(model, x)
    return logits, features


def through_head(model: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, nn.Linear, torch.Tensor]:
    """One forward pass: the scores, the last linear layer and its input, checked to be one row per sample."""
    logits, head, features = traced(model, x)
    if features.ndim != 2 or len(features) != len(x) or logits.shape[-1] != head.out_features:
        raise UsageError(
            f"the last linear layer that {type(model).__name__} uses maps {tuple(features.shape)} to "
            f"{head.out_features} numbers, and the model gives {tuple(logits.shape)} for {len(x)} samples; this method "
            "needs features, so the model must end in a linear layer with one row per sample and one output per class."
        )
    return logits, head, features


def length_of_features(model: nn.Module, classes: int) -> int | None:
    """How many features the last linear layer takes; None where the module does not show which one that is."""
    found = {one.in_features for one in model.modules() if isinstance(one, nn.Linear) and one.out_features == classes}
    return found.pop() if len(found) == 1 else None


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Forward passes inside keep no gradient and change no running average; afterwards each layer has its mode back."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


def traced(model: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, nn.Linear, torch.Tensor]:
    """One forward pass: the scores, the linear layer that was called last, and its input."""
    calls: list[Call] = []
    thread = threading.get_ident()

    def note(layer: nn.Linear, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        # Another thread may run the same module at this moment; its calls are not ours.
        if threading.get_ident() == thread:
            calls[:] = [(layer, given[0] if given else named["input"])]

    linears = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    hooks = [layer.register_forward_pre_hook(note, with_kwargs=True) for layer in linears]
    try:
        logits = model(x)
    finally:
        for hook in hooks:
            hook.remove()
    if not calls:
        raise UsageError(
            f"{type(model).__name__} uses no linear layer (torch.nn.Linear), so it has no features; this method needs "
            "them. Let the model end in a torch.nn.Linear, or choose a model that `fedwinnow models` lists."
        )
    return logits, *calls[0]
