"""Shamir's secret sharing: any `threshold` shares give the secret back, fewer tell nothing about it.

The secret is the value at 0 of a polynomial over the integers modulo a prime; a share is its value at another place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

PRIME = 2**256 + 297  # the smallest prime above 2^256, so that 32 bytes are a secret
SIZE = 33  # bytes of a share
SECRET = 32  # bytes of a secret
LOST = b"\xff" * SIZE  # in place of a share that its holder could not read


def split(secret: int, threshold: int, places: Sequence[int], draw: Callable[[], int], prime: int = PRIME) -> list[int]:
    """The shares at these places; `draw` gives a random number below the prime for each coefficient."""
    if not 1 <= threshold <= len(places) or 0 in {place % prime for place in places}:
        raise ValueError(f"{threshold} of {len(places)} shares; the places must not be 0.")
    coefficients = [secret % prime, *(draw() % prime for _ in range(threshold - 1))]
    return [value_at(coefficients, place, prime) for place in places]


def value_at(coefficients: Sequence[int], place: int, prime: int) -> int:
    """The value of a polynomial, by Horner's rule."""
    found = 0
    for coefficient in reversed(coefficients):
        found = (found * place + coefficient) % prime
    return found


def joined(shares: Mapping[int, int], prime: int = PRIME) -> int:
    """The secret from shares by their places: exactly as many as the threshold."""
    factors = at_zero(tuple(sorted(shares)), prime)
    return sum(factors[place] * share for place, share in shares.items()) % prime


@lru_cache(maxsize=64)
def at_zero(places: tuple[int, ...], prime: int) -> dict[int, int]:
    """Lagrange's factors at 0."""
    found = {}
    for place in places:
        above = below = 1
        for other in places:
            if other != place:
                above, below = above * other % prime, below * (other - place) % prime
        found[place] = above * pow(below, -1, prime) % prime
    return found


def as_bytes(share: int) -> bytes:
    """A share as it travels."""
    return share.to_bytes(SIZE, "big")


def from_bytes(raw: bytes) -> int | None:
    """A share that came; None if it is none."""
    found = int.from_bytes(raw, "big")
    return found if len(raw) == SIZE and found < PRIME else None


def secret_from(shares: Mapping[int, int]) -> bytes | None:
    """The secret as bytes; None if no secret has these shares."""
    found = joined(shares)
    return found.to_bytes(SECRET, "big") if found < 2 ** (8 * SECRET) else None
