"""What noisy steps cost: epsilon by Google's dp-accounting, which follows the distribution of the privacy loss.

The neighbour of a data set lacks one contribution (add or remove): a sample, or a site. Sampling makes a step cheaper
only where every sample is drawn by itself with one chance (Poisson); otherwise `rate` is 1.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from fedwinnow.errors import UsageError, missing_extra

STEP = 0.001  # noise is rounded up to a multiple of it, so that every machine finds the same
LEAST_NOISE, MOST_NOISE = 0.2, 1e5  # where it is looked for
FINEST, COARSEST = 1e-4, 1e-2  # of the accountant's grid, which rounds up: a coarser one states a larger epsilon


@dataclass(frozen=True)
class Mechanism:
    """A step that is made again and again: a sum of clipped contributions, and noise `noise` times the clip."""

    rate: float  # the chance with which a contribution is in a step; 1: always
    steps: int  # in one visit of a site
    noise: float  # the noise multiplier

    def epsilon(self, visits: int, delta: float, budget: float) -> float:
        """What so many visits have cost."""
        return epsilon_of(self.rate, self.noise, self.steps * visits, delta, grid(budget))


def mechanism(rate: float, steps: int, visits: int, epsilon: float, delta: float) -> Mechanism:
    """The mechanism whose `visits` visits cost at most epsilon, with as little noise as that needs."""
    return Mechanism(rate, steps, least_noise(rate, steps * visits, epsilon, delta))


def grid(budget: float) -> float:
    """How fine the accountant calculates: to about a fifth of a percent of the budget."""
    return min(COARSEST, max(FINEST, budget / 500))


@functools.lru_cache(maxsize=100_000)
def epsilon_of(rate: float, noise: float, count: int, delta: float, interval: float) -> float:
    """Epsilon of so many steps at this delta; an upper bound."""
    if count == 0:
        return 0.0
    try:
        import dp_accounting
        from dp_accounting import pld
    except ImportError:
        raise missing_extra("privacy", "--privacy (its accountant)") from None
    event = dp_accounting.GaussianDpEvent(noise)
    if rate < 1:
        event = dp_accounting.PoissonSampledDpEvent(rate, event)
    accountant = pld.PLDAccountant(
        dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=interval
    )
    accountant.compose(dp_accounting.SelfComposedDpEvent(event, count))
    return float(accountant.get_epsilon(delta))


@functools.lru_cache(maxsize=10_000)
def least_noise(rate: float, count: int, epsilon: float, delta: float) -> float:
    """The least noise multiplier, a multiple of STEP, with which so many steps cost at most epsilon."""
    fits = functools.partial(within, rate, count, epsilon, delta)
    # The classical bound is enough noise, and little noise takes the accountant long: begin from above.
    enough = math.sqrt(2 * math.log(1.25 / delta) * max(1, count)) / min(epsilon, 1.0)
    if enough > MOST_NOISE:
        raise UsageError(
            f"--privacy: epsilon={epsilon:g} at delta={delta:g} would need noise of up to {enough:.3g} times the clip "
            f"for {count} steps; allowed: a larger epsilon or delta, or fewer rounds or epochs."
        )
    high = math.ceil(max(enough, LEAST_NOISE) / STEP)
    least = round(LEAST_NOISE / STEP)
    while high > least and fits(max(high // 2, least)):
        high = max(high // 2, least)
    low = max(high // 2, least)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return round(high * STEP, 3)


def within(rate: float, count: int, epsilon: float, delta: float, noise: int) -> bool:
    """Whether so many steps with this noise, in multiples of STEP, cost at most epsilon."""
    return epsilon_of(rate, round(noise * STEP, 3), count, delta, grid(epsilon)) <= epsilon


def most_advantage(epsilon: float, delta: float) -> float:
    """The largest difference of true and false positive rate that any test of membership can have."""
    return (math.expm1(epsilon) + 2 * delta) / (math.exp(epsilon) + 1)
