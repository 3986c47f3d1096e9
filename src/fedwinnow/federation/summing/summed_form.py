"""A site's reply as one row of integers that can be summed, and the sum as one reply.

What is averaged is multiplied by the site's samples first, so that the sum divided by all samples is the weighted mean.
The last number counts the values that were clipped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedwinnow.errors import RunError
from fedwinnow.federation.summing.sum_messages import Malformed, SumFailed
from fedwinnow.mathematics.fixed_point import LARGEST, LARGEST_SUM, MOST_SAMPLES, Ring, as_numbers, summed, weighted
from fedwinnow.mathematics.payload import Exposure, Payload

Kind = Literal["mean", "sum"]  # the mean weighted by samples, or the plain sum
Sums = Mapping[str, Kind]
SAMPLES = "samples"  # the weight of what is averaged

# What leaves a site in place of a reply; nothing can be learned from a part of it, only from the sum.
EXPOSED: dict[str, Exposure] = dict.fromkeys(
    ("keys", "signature", "shares", "commitment", "masked", "form", "of_masks", "of_keys"), "masked"
)
KINDS = {str(kind).removeprefix("torch."): kind for kind in (torch.float32, torch.float64, torch.int64, torch.int32)}
LARGEST_FORM = 10**9  # numbers: a larger form is a mistake


def flattened(reply: Payload, sums: Sums, sites: int) -> tuple[list[list[Any]], Ring, int]:
    """The form of a reply, its numbers, and how many values were clipped."""
    form, rings, clipped = [], [], 0
    averaged = [key for key in reply if sums[key] == "mean"]
    if averaged and SAMPLES not in reply:
        raise RunError(f"'{averaged[0]}' is averaged by samples, and the reply has no '{SAMPLES}'.")
    for key in sorted(reply):
        value = reply[key]
        kind = str(value.dtype).removeprefix("torch.")
        if kind not in KINDS:
            raise RunError(f"'{key}' is {value.dtype}; with secure sums, allowed: {', '.join(KINDS)}.")
        form.append([key, kind, list(value.shape)])
        if sums[key] == "mean":
            ring, cut = weighted(value, int(reply[SAMPLES]), sites)
            rings.append(ring)
            clipped += cut
        else:
            rings.append(summed(key, value, sites))
    rings.append(summed("clipped", torch.tensor([float(clipped)]), sites))
    return form, np.concatenate(rings), clipped


def checked_form(form: object, sums: Sums) -> tuple[list[tuple[str, torch.dtype, tuple[int, ...]]], int]:
    """The form that a site states, and how many numbers it needs; raises Malformed."""
    found: list[tuple[str, torch.dtype, tuple[int, ...]]] = []
    for line in form if isinstance(form, list) else [None]:
        if not isinstance(line, list) or len(line) != 3 or not isinstance(line[2], list):
            raise Malformed("its form is no list of keys, types and shapes")
        key, kind, shape = line
        if not isinstance(key, str) or key not in sums or (found and found[-1][0] >= key):
            raise Malformed(f"its form has the key {str(key)[:60]!r}, or keys out of order")
        if kind not in KINDS or not all(type(side) is int and 0 <= side <= LARGEST_FORM for side in shape):
            raise Malformed(f"its form has a wrong type or shape of '{key}'")
        found.append((key, KINDS[kind], tuple(shape)))
    return found, sum(math.prod(shape) for _, _, shape in found) + 1


def from_sum(form: object, ring: Ring, sums: Sums) -> tuple[Payload, int]:
    """The reply that stands for all sites, and how many values were clipped; raises SumFailed for impossible sums."""
    entries, size = checked_form(form, sums)
    if len(ring) != size:
        raise SumFailed("the sum has another length than its form.")
    rings: dict[str, Ring] = {}
    start = 0
    for key, _, shape in entries:
        stop = start + math.prod(shape)
        rings[key], start = ring[start:stop], stop
    samples = float(as_numbers(rings[SAMPLES])[0]) if SAMPLES in rings else 0.0
    refuse_impossible(SAMPLES, torch.tensor([samples]), 0.0, MOST_SAMPLES)
    clipped = as_numbers(ring[start:])
    refuse_impossible("clipped", clipped, 0.0, LARGEST_SUM)
    reply = {}
    for key, dtype, shape in entries:
        averaged = sums[key] == "mean"
        numbers = as_numbers(rings[key], samples if averaged and samples else 1.0)
        limit = LARGEST * (1 + 1e-9) if averaged else LARGEST_SUM
        refuse_impossible(key, numbers, -limit, limit)
        numbers = numbers if dtype.is_floating_point else numbers.round()
        reply[key] = numbers.to(dtype).reshape(shape)
    return reply, int(clipped[0])


def refuse_impossible(key: str, numbers: Tensor, lowest: float, highest: float) -> None:
    """Refuse a sum that honest sites cannot have."""
    if numbers.numel() and not (lowest <= float(numbers.min()) and float(numbers.max()) <= highest):
        raise SumFailed(
            f"the sum of '{key}' is outside what sites can send: at least one site has sent something else than its "
            f"masked answer, and nobody can tell which."
        )
