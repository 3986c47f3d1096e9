"""A verdict is checked at the site: a value that is not a probability or not a class is an error."""

from __future__ import annotations

import torch
from torch import Tensor

from fedwinnow.errors import RunError
from fedwinnow.federation.client import Client
from fedwinnow.federation.method import Method, Verdict
from fedwinnow.mathematics.payload import Payload

WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def verdict_of(method: Method, client: Client, got: Payload) -> Verdict:
    """The method's verdict on the site's labels, checked; the caller adds the client to an error."""
    found = method.verdict(client, got)
    problem = problem_with_verdict(found, len(client), client.classes)
    if problem is not None:
        raise RunError(f"the verdict of method '{method.name}' is invalid: {problem}.")
    return found


def problem_with_verdict(found: object, samples: int, classes: int) -> str | None:
    """What is wrong with a verdict on this many samples and classes; None if it is valid."""
    if not isinstance(found, Verdict):
        return f"`verdict` returned a {type(found).__name__}; allowed: Verdict(p_wrong, suggested)"
    for name, value in (("p_wrong", found.p_wrong), ("suggested", found.suggested)):
        if not isinstance(value, Tensor):
            return f"{name} is a {type(value).__name__}; allowed: a tensor with one number per sample"
        if value.shape != (samples,):
            return f"{name} has the shape {tuple(value.shape)}; allowed: ({samples},), the site's samples"
    return problem_with_chances(found.p_wrong) or problem_with_classes(found.suggested, classes)


def problem_with_chances(p_wrong: Tensor) -> str | None:
    """Why these are not probabilities; None if they are."""
    if not p_wrong.is_floating_point():
        return f"p_wrong is {p_wrong.dtype}; allowed: floating-point numbers from 0 to 1"
    if bad := first(p_wrong, ~((p_wrong >= 0) & (p_wrong <= 1))):  # written so that NaN is bad, too
        return f"p_wrong is {bad[1]:g} for sample {bad[0]}; allowed: 0 to 1"
    return None


def problem_with_classes(suggested: Tensor, classes: int) -> str | None:
    """Why these are not classes; None if they are."""
    if suggested.dtype not in WHOLE:
        return f"suggested is {suggested.dtype}; allowed: whole numbers, the classes"
    if bad := first(suggested, (suggested < 0) | (suggested >= classes)):
        return f"suggested is {bad[1]:g} for sample {bad[0]}; allowed: the classes 0 to {classes - 1}"
    return None


def first(values: Tensor, bad: Tensor) -> tuple[int, float] | None:
    """The place and the value of the first bad one; None if there is none."""
    places = bad.nonzero().flatten()
    return (int(places[0]), float(values[places[0]])) if len(places) else None
