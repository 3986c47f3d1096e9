"""How large the model is that a coordinator names: counted before it is built, so that it cannot fill a memory."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook

from fedwinnow.deployment.asked import Asked
from fedwinnow.deployment.error_codes import for_others
from fedwinnow.deployment.holding import Holding
from fedwinnow.errors import UsageError
from fedwinnow.models.make_model import BUILDING, builder_for, in_turn, make_model, model_for
from fedwinnow.models.model import Shape

MOST_TENSORS = 10_000  # of weights: a model of more layers takes long to build, however small they are


def with_size(asked: Asked, message: dict[str, Any], holding: Holding) -> Asked:
    """What is asked, with the size of the largest model; without it where the encoder's error comes first."""
    try:
        shape = holding.shape_of_model(message)
    except Exception:  # what does not fit, or cannot be read, is told when the data is compared
        return asked
    try:
        sizes = [parameters_of(spec, shape) for spec in in_turn(asked.experiment.model)]
    except UsageError as problem:
        raise for_others(problem, "settings") from None
    return dataclasses.replace(asked, parameters=max(sizes))


def parameters_of(spec: Any, shape: Shape) -> int:
    """How many weights a model has; nothing is kept in memory for them."""
    found: list[int] = []

    def count(module: Any, name: str, value: Any) -> None:
        found.append(value.numel())
        if len(found) > MOST_TENSORS:
            raise UsageError(
                f"the coordinator asks for a model of more than {MOST_TENSORS:,} tensors of weights; no site builds "
                f"one. Nothing was computed."
            )

    build = builder_for(model_for(shape) if spec is None else spec)
    with BUILDING, torch.device("meta"):
        hook = register_module_parameter_registration_hook(count)
        try:
            module = build(shape)
        except (NotImplementedError, RuntimeError):  # somebody's model that computes with its weights when it is made
            module = None
        finally:
            hook.remove()
    if module is None:
        module = make_model(spec, shape)
    return sum(value.numel() for value in module.parameters())
