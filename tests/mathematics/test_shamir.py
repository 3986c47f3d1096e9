"""Shamir's secret sharing, by hand on small numbers."""

from __future__ import annotations

import itertools
import os

import pytest

from fedwinnow.mathematics.shamir import LOST, PRIME, as_bytes, at_zero, from_bytes, joined, secret_from, split


def test_by_hand_over_the_integers_modulo_17() -> None:
    # f(x) = 13 + 10 x + 2 x^2: f(1) = 25 = 8, f(2) = 41 = 7, f(3) = 61 = 10, f(5) = 113 = 11
    given = iter([10, 2])
    assert split(13, 3, [1, 2, 3, 5], lambda: next(given), 17) == [8, 7, 10, 11]
    assert at_zero((1, 2, 3), 17) == {1: 3, 2: 17 - 3, 3: 1}  # 3 f(1) - 3 f(2) + f(3) = f(0) for parabolas
    shares = {1: 8, 2: 7, 3: 10, 5: 11}
    for places in itertools.combinations(shares, 3):
        assert joined({place: shares[place] for place in places}, 17) == 13


def test_fewer_shares_than_the_threshold_fit_every_secret() -> None:
    # Of f(1) = 8 and f(2) = 7 each of the 17 secrets is possible with exactly one f(3).
    secrets = [joined({1: 8, 2: 7, 3: third}, 17) for third in range(17)]
    assert sorted(secrets) == list(range(17))


def test_a_wrong_share_gives_another_secret() -> None:
    assert joined({1: 8, 2: 7, 3: 11}, 17) != 13


def test_the_prime_is_one() -> None:
    for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37):  # Miller and Rabin
        odd, twos = PRIME - 1, 0
        while odd % 2 == 0:
            odd, twos = odd // 2, twos + 1
        value = pow(base, odd, PRIME)
        assert value in (1, PRIME - 1) or PRIME - 1 in [pow(value, 2**step, PRIME) for step in range(1, twos)]


def test_whole_secrets() -> None:
    secret = os.urandom(32)
    places = list(range(1, 11))
    shares = split(int.from_bytes(secret, "big"), 7, places, lambda: int.from_bytes(os.urandom(48), "big"))
    travelled = {place: from_bytes(as_bytes(share)) for place, share in zip(places, shares, strict=True)}
    assert secret_from({place: travelled[place] for place in (2, 3, 5, 7, 8, 9, 10)}) == secret  # type: ignore[misc]


def test_what_is_no_share() -> None:
    assert from_bytes(LOST) is None
    assert from_bytes(b"\x01") is None
    assert from_bytes(PRIME.to_bytes(33, "big")) is None
    with pytest.raises(ValueError, match="places must not be 0"):
        split(1, 2, [0, 1], lambda: 1, 17)
