"""Random numbers that depend only on (seed, purpose, client, position).

A draw is a hash of where it is used, so the order of work, the number of workers and the other clients never change
it. The hash is integer arithmetic, so it is the same on every machine and in every version of NumPy, whose own
generators may change between releases.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
BLOCK = 1 << 14  # numbers that are computed at once, so that they stay in the processor's cache


def stream_key(seed: int, purpose: str, *numbers: int) -> int:
    """A 64-bit number for one purpose of one seed (and, for training, one client and round)."""
    text = "/".join([str(int(seed)), purpose, *(str(int(number)) for number in numbers)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def uniforms(seed: int, purpose: str, client: Any, position: Any = 0) -> Floats:
    """Numbers in [0, 1), one per (client, position) pair; both may be arrays."""
    key = np.uint64(stream_key(seed, purpose))
    client, position = np.broadcast_arrays(client, position)
    if client.size <= BLOCK:
        return _uniforms(key, client, position)
    numbers = np.empty(client.shape)
    step = max(BLOCK * len(client) // client.size, 1)
    for start in range(0, len(client), step):
        part = slice(start, start + step)
        numbers[part] = _uniforms(key, client[part], position[part])
    return numbers


def _uniforms(key: np.uint64, client: NDArray[Any], position: NDArray[Any]) -> Floats:
    """The numbers of one block."""
    with np.errstate(over="ignore"):
        lane = mix(client.astype(np.uint64) * GOLDEN + key)
        bits = mix(lane + (position.astype(np.uint64) + np.uint64(1)) * GOLDEN)
    # The top 53 bits fill a double exactly.
    return np.asarray((bits >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def mix(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64: every input bit changes about half of the output bits."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(bits ^ (bits >> np.uint64(31)))


def words_of(key: int, start: int, count: int) -> NDArray[np.uint64]:
    """The words number start, start + 1, ... of 64 bits each that belong to a key."""
    found = np.empty(count, dtype=np.uint64)
    with np.errstate(over="ignore"):
        lane = mix(np.array([key], dtype=np.uint64) + GOLDEN)
        for first in range(0, count, BLOCK):
            part = found[first : first + BLOCK]
            places = np.arange(start + first + 1, start + first + 1 + len(part), dtype=np.uint64)
            part[:] = mix(lane + places * GOLDEN)
    return found


def permutation(seed: int, purpose: str, size: int, client: int = 0) -> Integers:
    """A random order of 0..size-1."""
    return order_of(uniforms(seed, purpose, client, np.arange(size)))


def order_of(numbers: Floats) -> Integers:
    """The stable sorting order of random numbers; the faster unstable sort gives the same unless two are equal."""
    order = np.argsort(numbers)
    ordered = numbers[order]
    if (ordered[1:] == ordered[:-1]).any():
        order = np.argsort(numbers, kind="stable")
    return order.astype(np.int64, copy=False)


def frozen_generator(seed: int, purpose: str, *numbers: int) -> np.random.RandomState:
    """NumPy's legacy generator, whose streams never change between versions; for gamma and Dirichlet draws."""
    return np.random.RandomState(np.random.MT19937(np.random.SeedSequence(stream_key(seed, purpose, *numbers))))
