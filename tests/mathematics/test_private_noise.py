"""The noise that protects: whole numbers, each with exactly its chance, on a sum that is whole, too."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import chisquare, kstest, norm

pytest.importorskip("mpmath", reason="the extra 'privacy' is not installed: pip install '.[privacy]'")

from fedwinnow.errors import RunError
from fedwinnow.mathematics import whole_normal
from fedwinnow.mathematics.private_noise import (
    COARSE,
    FINE,
    FromSeed,
    FromSystem,
    Randomness,
    deviation,
    sensitivity,
    with_noise,
)
from fedwinnow.mathematics.whole_normal import bracket, reaches, settled

SOURCES = [FromSeed(3), FromSystem()]


class Given(Randomness):
    """Words from a list; then from a seed."""

    def __init__(self, *given: int) -> None:
        self.given, self.rest, self.asked = list(given), FromSeed(1), 0

    def words(self, count: int) -> np.ndarray:
        self.asked += count
        found = [self.given.pop(0) if self.given else int(self.rest.words(1)[0]) for _ in range(count)]
        return np.array(found, dtype=np.uint64)


@pytest.mark.parametrize("source", SOURCES)
def test_every_whole_number_has_the_chance_of_its_interval(source):
    # Deviation 2, so that single numbers can be counted: the chance of k is that of k - 1/2 to k + 1/2.
    drawn = source.normal(200_000, 2).numpy()
    assert drawn.dtype == np.int64
    numbers = np.arange(-7, 8)
    chances = norm.cdf((numbers + 0.5) / 2) - norm.cdf((numbers - 0.5) / 2)
    seen = np.array([(drawn == number).sum() for number in numbers])
    rest = np.array([200_000 - seen.sum()]), np.array([1 - chances.sum()])
    assert chisquare(np.append(seen, rest[0]), 200_000 * np.append(chances, rest[1])).pvalue > 1e-6


@pytest.mark.parametrize("source", SOURCES)
def test_large_noise_is_normal_and_its_last_bits_are_even(source):
    drawn = source.normal(200_000, 3 * 2**COARSE).numpy()
    assert kstest(drawn / (3 * 2**COARSE), "norm").pvalue > 1e-6
    for bits in (1, 3, 8):
        assert chisquare(np.bincount(drawn % 2**bits, minlength=2**bits)).pvalue > 1e-6


@pytest.mark.parametrize("source", SOURCES)
def test_samples_are_drawn_one_by_one(source):
    counts = [len(source.chosen(100, 0.2)) for _ in range(2000)]
    assert np.mean(counts) == pytest.approx(20, abs=0.6)
    assert np.std(counts) == pytest.approx(4, abs=0.4)  # binomial: sqrt(100 * 0.2 * 0.8)
    assert len(source.chosen(100, 1.0)) == 100
    assert sorted(source.order(9).tolist()) == list(range(9))


def test_a_sample_is_never_drawn_with_more_than_its_chance():
    # The last word that draws is the greatest whose share of all words is within the rate.
    for rate in (0.3, 1 / 3, 2.0**-40):
        last = math.floor(rate * 2**53) - 1
        assert Given(last << 11).chosen(1, rate).tolist() == [0]
        assert Given((last + 1) << 11).chosen(1, rate).tolist() == []


def test_only_the_seed_can_be_repeated():
    assert torch.equal(FromSeed(3).normal(5, 2**COARSE), FromSeed(3).normal(5, 2**COARSE))
    assert not torch.equal(FromSeed(3).normal(5, 2**COARSE), FromSeed(4).normal(5, 2**COARSE))
    assert not torch.equal(FromSystem().normal(5, 2**COARSE), FromSystem().normal(5, 2**COARSE))
    source = FromSeed(3)
    assert not torch.equal(source.normal(5, 2**COARSE), source.normal(5, 2**COARSE))


@pytest.mark.parametrize("size", [1, 7, 2**20, 2**30])
def test_what_the_processor_settles_is_what_exact_arithmetic_says(size):
    words = FromSeed(0).words(120) >> np.uint64(1)
    words = np.concatenate([words, words >> np.uint64(20), words >> np.uint64(50)])
    low, high = bracket(words, size)
    for word, least, most in zip(words.tolist(), low, high, strict=True):
        assert least <= settled(word, 0, 40 * size, size, FromSeed(5).words) <= most


def test_a_rounding_that_is_in_doubt_is_settled_by_further_bits():
    # The word in which the chance of reaching 1/2 lies: what follows it decides between 0 and 1.
    word = int(2**63 * math.erfc(0.5 / math.sqrt(2)))
    near = [number for number in range(word - 2000, word + 2000) if reaches(number, 63, 1, 1) is None]
    assert len(near) == 1
    found = {settled(near[0], 0, 1, 1, Given(*[last] * 3).words) for last in (0, 2**64 - 1)}
    assert found == {0, 1}
    given = Given(near[0])
    assert int(given.normal(1, 1)) in (0, 1)
    assert given.asked == 1 + whole_normal.MORE_WORDS


def test_the_sign_is_a_bit_of_its_own():
    word = int(FromSeed(2).words(1)[0]) >> 1
    assert int(Given(word).normal(1, 2**20)) == -int(Given(word | 2**63).normal(1, 2**20)) != 0


@pytest.mark.parametrize("numbers", [1, 2, 100, 12_810])
def test_the_noise_covers_the_clip_and_the_rounding_of_the_sum(numbers):
    # The worst that one contribution does to a rounded sum: each number just over the half, and the clip besides.
    half = 2 ** (FINE - COARSE - 1)
    before = torch.full((numbers,), half - 1)
    change = torch.full((numbers,), math.floor(2**FINE / math.sqrt(numbers)))
    moved = [with_noise(total, 0.0, 2.0**COARSE, FromSeed(0)) for total in (before, before + change)]
    length = float((moved[1] - moved[0]).norm())
    assert 2**COARSE <= length <= sensitivity(numbers)
    assert sensitivity(numbers) - 2**COARSE <= math.sqrt(numbers) + 1
    assert deviation(3.0, numbers) >= 3 * sensitivity(numbers)


def test_what_is_released_is_a_multiple_of_the_unit_whatever_the_sum():
    chance = np.random.RandomState(0)
    total = torch.from_numpy(chance.randint(-(2**45), 2**45, 500))
    found = with_noise(total, 1.3, 0.7, FromSeed(0)) / (0.7 * 2.0**-COARSE)
    assert torch.allclose(found, found.round(), rtol=0, atol=1e-4)
    plain = with_noise(torch.zeros(500, dtype=torch.int64), 1.3, 0.7, FromSeed(0)) / (0.7 * 2.0**-COARSE)
    rounded = torch.from_numpy(np.floor(total.numpy() / 2**20 + 0.5))
    assert torch.equal((found - plain).round(), rounded)  # the same noise: it does not know the sum


def test_noise_that_cannot_be_drawn_is_refused():
    with pytest.raises(RunError, match="more than can be drawn"):
        deviation(1e8, 5)
