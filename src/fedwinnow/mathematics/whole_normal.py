"""Normal numbers rounded to whole ones, exactly: the numbers that hide a sum of whole numbers.

A whole sum and a rounded normal number are together the rounded sum of both, so whatever is proved of the normal noise
holds of this. That is true only if every whole number has exactly its chance. Hence a number whose rounding the
arithmetic of the processor does not settle is settled with as many digits, and as many random bits, as it takes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwinnow.randomness import BLOCK, Integers

Words = NDArray[np.uint64]
Source = Callable[[int], Words]  # so many words of 64 random bits

SIGN = np.uint64(63)  # the first bit of a word; the other 63 say how far out the number lies
REST = np.uint64(2**63 - 1)
WRONG = 2.0**-44  # of the quantile function, relative, at most; against exact arithmetic it was 1e-15, a fiftieth of it
MOST = 2**40  # the largest deviation: the slack of a number is then far below 1
FARTHEST = 40  # deviations; nothing lies beyond
MORE_WORDS = 3  # by which a word is extended where it does not settle the rounding
SPARE = 64  # bits with which the exact arithmetic calculates beyond those of a word
ERROR = 2.0**-20  # of the exact arithmetic, at most, in the last place of the word


def whole_normal(source: Source, count: int, deviation: int) -> Integers:
    """So many independent rounded normal numbers of mean 0 and this deviation; exactly 0 for the deviation 0."""
    if deviation == 0:
        return np.zeros(count, dtype=np.int64)
    found = np.empty(count, dtype=np.int64)
    for start in range(0, count, BLOCK):
        part = found[start : start + BLOCK]
        words = source(len(part))
        low, high = bracket(words & REST, deviation)
        part[:] = low
        for place in np.flatnonzero(low != high):
            least, most = int(low[place]), int(min(high[place], FARTHEST * deviation))
            part[place] = settled(int(words[place] & REST), least, most, deviation, source)
        np.negative(part, where=(words >> SIGN).astype(bool), out=part)
    return found


def bracket(words: Words, deviation: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The least and the largest whole number that the rounding may give."""
    from scipy.special import ndtri

    middle = words.astype(np.float64) + 0.5
    far = -ndtri(middle * 2.0**-64) * deviation
    with np.errstate(divide="ignore"):  # the word 0 says nothing: its bracket is infinite
        slack = deviation * 4 * (1 / words.astype(np.float64) + 2.0**-52) + far * WRONG
    return np.maximum(np.floor(far - slack + 0.5), 0), np.maximum(np.floor(far + slack + 0.5), 0)


def settled(word: int, least: int, most: int, deviation: int, source: Source) -> int:
    """The rounded number for a chance that begins with this word; further bits are drawn as needed."""
    precision = 63
    low, high = least, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        while (above := reaches(word, precision, middle, deviation)) is None:
            for more in source(MORE_WORDS).tolist():
                word = (word << 64) | more
            precision += 64 * MORE_WORDS
        low, high = (middle, high) if above else (low, middle)
    return low


def reaches(word: int, precision: int, number: int, deviation: int) -> bool | None:
    """Whether the normal number is at least number - 1/2; None if so many bits of the chance do not say.

    The chance is that of being farther out. It lies between word and word + 1, in units of 2**-(precision + 1).
    """
    math = context(precision + SPARE)
    limit = math.ldexp(math.erfc((2 * number - 1) / math.sqrt(math.mpf(8 * deviation**2))), precision)
    beyond = limit - word
    if beyond > 1 + ERROR:
        return True
    return False if beyond < -ERROR else None


@functools.lru_cache(maxsize=8)
def context(precision: int) -> Any:
    """Arithmetic with so many bits."""
    from mpmath import MPContext

    found = MPContext()
    found.prec = precision
    return found
