"""Where the randomness that protects comes from: the operating system in earnest, the seed in a simulation."""

from __future__ import annotations

import os
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedwinnow.randomness import Floats

SUMMANDS = 4  # normal numbers that make one: their last bits then say little about where a sum lies between two floats


class Randomness(Protocol):
    """Draws of noise and of samples."""

    def normal(self, count: int) -> Tensor:
        """So many normal numbers of deviation 1."""

    def chosen(self, count: int, rate: float) -> Tensor:
        """Which of so many samples are drawn, each with this chance."""

    def order(self, count: int) -> Tensor:
        """The numbers 0 to count - 1 in random order."""


class FromSeed:
    """The same numbers for the same key: for simulations, where nobody is protected."""

    def __init__(self, key: int) -> None:
        self.generator = torch.Generator().manual_seed(key & (2**63 - 1))

    def normal(self, count: int) -> Tensor:
        return torch.randn(count, generator=self.generator)

    def chosen(self, count: int, rate: float) -> Tensor:
        return (torch.rand(count, generator=self.generator, dtype=torch.float64) < rate).nonzero().flatten()

    def order(self, count: int) -> Tensor:
        return torch.randperm(count, generator=self.generator)


class FromSystem:
    """Numbers of the operating system's generator, which nobody can repeat."""

    def normal(self, count: int) -> Tensor:
        pairs = SUMMANDS // 2
        length = np.sqrt(-2 * np.log1p(-self.uniform(pairs * count)))  # by Box and Muller
        angle = 2 * np.pi * self.uniform(pairs * count)
        total = (length * (np.cos(angle) + np.sin(angle))).reshape(pairs, count).sum(0)
        return torch.from_numpy((total / np.sqrt(SUMMANDS)).astype(np.float32))

    def chosen(self, count: int, rate: float) -> Tensor:
        return torch.from_numpy(np.flatnonzero(self.uniform(count) < rate))

    def order(self, count: int) -> Tensor:
        return torch.from_numpy(np.argsort(self.uniform(count), kind="stable"))

    @staticmethod
    def uniform(count: int) -> Floats:
        """Numbers in [0, 1) with 53 random bits each."""
        bits = np.frombuffer(os.urandom(8 * count), np.uint64) >> np.uint64(11)
        return np.asarray(bits.astype(np.float64) * 2.0**-53)
