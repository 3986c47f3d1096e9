"""A payload: named tensors. Everything that is sent or kept between rounds has this form; nothing is pickled."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from fedwinnow.errors import RunError

Payload = dict[str, Tensor]
Exposure = Literal["model", "client", "sample"]  # what the receiver can learn about: the model, the site, a sample


class Received(Payload):
    """A reply as a method reads it; the error for a missing key names the sender."""

    def __init__(self, content: Payload, sender: str) -> None:
        super().__init__(content)
        self.sender = sender

    def __missing__(self, key: str) -> Tensor:
        raise RunError(f"{self.sender}: its reply has no '{key}', which the method needs; it has {sorted(self)}.")

    def __or__(self, more: Payload) -> Received:  # type: ignore[override]
        return Received({**self, **more}, self.sender)


def check_state(state: Payload, place: str, method: str) -> None:
    """Refuse a state that holds anything but tensors, because only tensors are written to disk."""
    for key, value in state.items():
        if not isinstance(key, str):
            raise RunError(f"method '{method}': {place} has the key {key!r}, which is not a text; allowed: texts.")
        if not isinstance(value, Tensor):
            kind, shown = type(value).__name__, repr(value)[:60]
            raise RunError(
                f"method '{method}': {place}['{key}'] is not a tensor but of the type {kind}: {shown}. Only tensors "
                f"are kept between rounds: wrap it in torch.tensor(...), and read a number back with .item()."
            )


def size_in_bytes(payload: Payload) -> int:
    """The size of the payload as it is sent, without the names."""
    return sum(value.numel() * value.element_size() for value in payload.values())


def problem_with(payload: object, exposes: dict[str, Exposure]) -> str | None:
    """Why a reply cannot be accepted, or None."""
    if not isinstance(payload, dict) or not payload:
        return "it returned nothing"
    for key, value in payload.items():
        if key not in exposes:
            return f"its reply has the key '{key}', which the method does not declare in `exposes`"
        if not isinstance(value, Tensor):
            return f"'{key}' in its reply is a {type(value).__name__}, not a tensor"
        if not is_finite(value):
            return f"'{key}' in its reply is not finite (NaN or infinity)"
    return None


def is_finite(value: Tensor) -> bool:
    """Whether there is no NaN and no infinity: both show in the minimum and maximum, which take one pass."""
    if not value.is_floating_point() or not value.numel():
        return True
    return bool(torch.isfinite(torch.stack(value.detach().aminmax())).all())
