"""The least count: what concerns fewer samples than this does not leave a site.

A site with fewer samples is absent. A class of which a site has fewer is said to be like a class that it does not have:
its entries are 0. A model that was trained on fewer of the site's samples is not sent. All of it happens at the host,
so no method can forget it; `Client.told` is for values of one class that would depend on samples of another.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedwinnow.errors import UsageError
from fedwinnow.mathematics.payload import Exposure

USUAL_OF_REAL_SITES = 5  # samples, where nobody says otherwise


class TooFew(Exception):
    """What was asked for concerns too few samples: the site says nothing, which is no failure."""


def usual_least_count(*, simulated: bool) -> int:
    """The least count over a network; a simulation hides nothing, because its coordinator has the whole scene."""
    return 0 if simulated else USUAL_OF_REAL_SITES


def refuse_values_per_sample(name: str, exposed: dict[str, Exposure], least_count: int) -> None:
    """In a simulation a least count above 1 and a method that sends a value per sample exclude each other.

    A real site bounds such values by what it lets others learn (`join --allow-exposure`).
    """
    single = [key for key, kind in exposed.items() if kind == "sample"]
    if single and least_count > 1:
        raise UsageError(
            f"method '{name}' sends '{single[0]}', a value for every single sample, and --least-count {least_count} "
            f"lets nothing leave that concerns fewer than {least_count} samples. Choose another method or option "
            f"(fedgr: gmm_scope=client), or --least-count 0."
        )


def without_small_classes(reply: Any, axes: dict[str, int], few: Tensor) -> Any:
    """The reply with 0 in the entries of classes that have too few samples, as for a class that is not there.

    `axes` says of every key that has something per class which of its axes that is.
    """
    if not isinstance(reply, dict) or not bool(few.any()):
        return reply
    return {key: hidden(value, axes.get(key), few) for key, value in reply.items()}


def hidden(value: Any, axis: int | None, few: Tensor) -> Any:
    """One value without what it says about these classes."""
    if axis is None or not isinstance(value, Tensor):
        return value
    shape = [1] * value.dim()
    shape[axis] = len(few)
    return torch.where(few.to(value.device).view(shape), torch.zeros_like(value), value)


def whole_passes(count: int, samples: int) -> int:
    """How much was computed, rounded up to whole passes: the exact number would tell how many samples were selected."""
    return -(-count // samples) * samples if samples else count
