"""Numbers as integers modulo 2^64, so that masks can be added to them and taken away without any rounding.

A number has 24 binary places. A value of a weighted mean is clipped to [-32768, 32768] and multiplied by its site's
samples before it is rounded; all sites together have fewer than 2^24 samples, so the sum stays within 2^63 and cannot
wrap around. A plain sum has values of up to 2^38 for all sites together.

With m sites, the sum is off by at most m 2^-25, and a mean over n samples by at most m 2^-25 / n, apart from the last
bits of float64 (2^-52 of the largest value) and of the type that the mean is turned back into.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedwinnow.errors import RunError

Ring = NDArray[np.uint64]
PLACES = 24  # binary places
UNIT = 2.0**PLACES
LARGEST = 2.0**15  # of a value that is averaged; larger ones are clipped
MOST_SAMPLES = 2**24 - 1  # of all sites together
LARGEST_SUM = 2.0**38  # of a value that is summed, over all sites together


def most_samples(sites: int) -> int:
    """How many samples one of so many sites may weigh."""
    return MOST_SAMPLES // sites


def weighted(values: Tensor, samples: int, sites: int) -> tuple[Ring, int]:
    """Values times samples as integers, and how many values had to be clipped."""
    if not 0 <= samples <= most_samples(sites):
        raise RunError(
            f"a site weighs {samples} samples; with secure sums over {sites} sites, each may weigh 0 to "
            f"{most_samples(sites)}, so that the sum cannot overflow."
        )
    exact = values.detach().cpu().double().flatten()
    kept = exact.clamp(-LARGEST, LARGEST)
    return as_ring(kept * (samples * UNIT)), int((kept != exact).sum())


def summed(key: str, values: Tensor, sites: int) -> Ring:
    """Values of a plain sum as integers; refused if the sum over so many sites could overflow."""
    exact = values.detach().cpu().double().flatten()
    limit = LARGEST_SUM / sites
    if exact.numel() and not float(exact.abs().max()) <= limit:
        raise RunError(
            f"'{key}' has the value {float(exact.abs().max()):g}; with secure sums over {sites} sites, at most "
            f"{limit:g} is allowed, so that the sum cannot overflow."
        )
    return as_ring(exact * UNIT)


def as_ring(exact: Tensor) -> Ring:
    """Whole numbers modulo 2^64, rounded to the nearest; negative ones are the upper half."""
    found: Ring = exact.round().to(torch.int64).numpy().view(np.uint64)
    return found


def as_numbers(ring: Ring, divisor: float = 1.0) -> Tensor:
    """The numbers that integers modulo 2^64 stand for, divided."""
    whole: NDArray[Any] = np.ascontiguousarray(ring).view(np.int64).astype(np.float64)
    return torch.from_numpy(whole / (UNIT * divisor))


def largest_error(sites: int, samples: float = 1.0) -> float:
    """How far a sum over so many sites, or a mean over so many samples, is at most from the exact one by rounding."""
    return sites * 2.0 ** -(PLACES + 1) / samples
