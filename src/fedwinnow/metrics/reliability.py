"""How far a share can be trusted, and whether probabilities mean what they say."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedwinnow.metrics.task import Figure, Values, share
from fedwinnow.randomness import Floats, Integers, uniforms

NORMAL_95 = 1.959963984540054  # 95 % of a normal distribution lie within so many standard deviations
BINS = 15
CHANCE_DRAWS = 20


def wilson(hits: int, count: int) -> tuple[float, float] | None:
    """The 95 % interval of a share by Wilson's formula; None where nothing was counted.

    With p = hits / count and z = 1.96 it is (p + z^2 / 2n -+ z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n).
    """
    if count == 0:
        return None
    rate, squared = hits / count, NORMAL_95**2 / count
    centre = (rate + squared / 2) / (1 + squared)
    half = NORMAL_95 / (1 + squared) * math.sqrt(rate * (1 - rate) / count + squared / (4 * count))
    # Rounding must not push the ends past 0 and 1, where they lie exactly if every or no sample is a hit.
    low = 0.0 if hits == 0 else max(centre - half, 0.0)
    return low, 1.0 if hits == count else min(centre + half, 1.0)


@dataclass(frozen=True)
class ReliabilityBin:
    """Samples of similar confidence: how sure the model is of them on average, and how often it is right."""

    samples: int
    confidence: float
    accuracy: float


def bin_numbers(confidence: Floats, bins: int = BINS) -> Integers:
    """The bin of each sample: floor(bins * rank / samples), where the least confident sample has rank 0.

    Equal confidences share the smallest of their ranks, so the order of the samples never matters.
    """
    ranks = np.searchsorted(np.sort(confidence), confidence, side="left")
    return np.asarray(ranks * bins // max(len(confidence), 1), np.int64)


def reliability(confidence: Values, right: Values, bins: int = BINS) -> list[ReliabilityBin]:
    """Bins with about the same number of samples, from unsure to sure; empty ones are left out."""
    confidence, right = np.asarray(confidence, np.float64), np.asarray(right, np.float64)
    number = bin_numbers(confidence, bins)
    sizes = np.bincount(number, minlength=bins)
    sure, hits = (np.bincount(number, weights=values, minlength=bins) for values in (confidence, right))
    return [
        ReliabilityBin(int(size), float(total / size), float(hit / size))
        for size, total, hit in zip(sizes, sure, hits, strict=True)
        if size
    ]


def calibration_error(confidence: Values, right: Values, bins: int = BINS) -> Figure:
    """The expected calibration error: the sum over bins of (samples / all samples) |accuracy - mean confidence|."""
    found = reliability(confidence, right, bins)
    return share(sum(one.samples * abs(one.accuracy - one.confidence) for one in found), len(np.asarray(confidence)))


def calibration_error_by_chance(confidence: Values, seed: int = 0, bins: int = BINS) -> Figure:
    """What a perfectly calibrated model with these confidences would show on so many samples, on average.

    Each draw makes every sample right with the probability that the model states. The error is never negative, so it
    is above 0 even then, and the more so the fewer samples there are.
    """
    confidence = np.asarray(confidence, np.float64)
    if len(confidence) == 0:
        return None
    number = bin_numbers(confidence, bins)
    sure = np.bincount(number, weights=confidence, minlength=bins)
    places = np.arange(len(confidence))
    total = 0.0
    for draw in range(CHANCE_DRAWS):
        right = uniforms(seed, "calibration by chance", draw, places) < confidence
        total += float(np.abs(np.bincount(number, weights=right, minlength=bins) - sure).sum())
    return share(total, CHANCE_DRAWS * len(confidence))
