"""Where the randomness that protects comes from, and the noise on a sum of contributions.

It comes from the operating system in earnest and from the seed in a simulation. Contributions are whole numbers of a
fine unit, their sum is rounded to whole numbers of a coarser one, and so is the noise: there are no last bits in which
a sum could show (Mironov, On Significance of the Least Significant Bits For Differential Privacy, 2012).
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod

import numpy as np
import torch
from torch import Tensor

from fedwinnow.errors import RunError
from fedwinnow.mathematics.whole_normal import MOST, Words, whole_normal
from fedwinnow.randomness import words_of

COARSE = 20  # what is released is a multiple of the clip / 2**20
FINE = 2 * COARSE  # contributions are multiples of the clip / 2**40
MOST_SUMMED = 2**22  # contributions whose sum fits into 64 bits


class Randomness(ABC):
    """Draws of noise and of samples."""

    @abstractmethod
    def words(self, count: int) -> Words:
        """So many words of 64 random bits."""

    def normal(self, count: int, deviation: int) -> Tensor:
        """So many normal numbers of this deviation, each rounded to a whole one."""
        return torch.from_numpy(whole_normal(self.words, count, deviation))

    def chosen(self, count: int, rate: float) -> Tensor:
        """Which of so many samples are drawn, each with this chance (less by at most 2**-53)."""
        numbers = (self.words(count) >> np.uint64(11)).astype(np.float64) + 1
        return torch.from_numpy(np.flatnonzero(numbers * 2.0**-53 <= rate))

    def order(self, count: int) -> Tensor:
        """The numbers 0 to count - 1 in random order."""
        return torch.from_numpy(np.argsort(self.words(count), kind="stable"))


class FromSeed(Randomness):
    """The same numbers for the same key: for simulations, where nobody is protected."""

    def __init__(self, key: int) -> None:
        self.key, self.used = key, 0

    def words(self, count: int) -> Words:
        self.used += count
        return words_of(self.key, self.used - count, count)


class FromSystem(Randomness):
    """Numbers of the operating system's generator, which nobody can repeat."""

    def words(self, count: int) -> Words:
        return np.frombuffer(os.urandom(8 * count), np.uint64)


def whole(part: Tensor, limit: int) -> Tensor:
    """Shares of a limit as whole numbers of its `2**limit`-th part, rounded towards 0, so that nothing gets longer."""
    return (exact(part) * 2.0**limit).trunc_()


def exact(value: Tensor) -> Tensor:
    """The value with 53 bits; Apple's graphics have none of these."""
    return (value.cpu() if value.device.type == "mps" else value).double()


def sensitivity(numbers: int) -> int:
    """By how many coarse units, in Euclidean length, one contribution of so many numbers moves the rounded sum.

    The clip is 2**20 of them; rounding a sum moves each number by less than one unit more.
    """
    return int(2**COARSE + math.isqrt(max(0, numbers - 1)) + 1)


def deviation(noise: float, numbers: int) -> int:
    """The deviation of the noise in coarse units: the noise multiplier times the sensitivity, rounded up."""
    found = math.ceil(noise * sensitivity(numbers))
    if found > MOST:
        raise RunError(f"--privacy: noise of {noise:g} times the clip is more than can be drawn exactly.")
    return found


def with_noise(total: Tensor, noise: float, clip: float, randomness: Randomness) -> Tensor:
    """What is released of a sum of contributions, given in fine units: with noise of `noise` times the clip."""
    rounded = (total + 2 ** (FINE - COARSE - 1)) >> (FINE - COARSE)
    noisy: Tensor = rounded.cpu() + randomness.normal(total.numel(), deviation(noise, total.numel()))
    return noisy.double() * (clip * 2.0**-COARSE)
