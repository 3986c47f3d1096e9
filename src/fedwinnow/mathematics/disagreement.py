"""How often given labels differ from held-out predictions, explained by hard samples and by wrong labels.

A site counts, by how sure a model is that has not seen the labels, its samples (N) and those whose label is not the
predicted class (M). With K classes and c = K / (K - 1), the share of differing labels at site s in bin b is

    d_sb = h_b + rho_s (1 - c h_b)          h_b = min(sigma(-alpha - beta t_b), 1 / c)          rho_s = rho_0 + delta_s

Right but hard labels (h) get fewer as the model gets surer, at all sites alike; wrong ones (rho) do not. The data fix
h and rho together only up to what that straight line cannot explain, so a fit gives a range of rho_0.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedwinnow.randomness import Floats

GRID = (0.0, 0.01, 0.02, 0.03, 0.045, 0.06, 0.08, 0.1, 0.13, 0.16, 0.2, 0.25, 0.3, 0.4)  # of rho_0
# A log-likelihood so far below the best is not rejected. For the most wrong labels, one-sided 95 %. For the fewest
# 91 %: with 95 % claims were 0.23 below the truth on average over the first 21 cases of the battery, with this 0.20.
WITHIN_MOST, WITHIN_FEWEST = 1.35, 0.9
DEAR = 20.0  # what a wrong label at one site alone costs, so that sites differ only where the counts demand it
LARGEST = 0.9  # rate of wrong labels at a site
LEAST = 1e-9
STEP = 0.005  # in which the rate of a site is searched
STRAY = 0.05  # less than this on top of the common rate is not told from chance
# How much harder the samples of a site may be: a shift of the log-odds of "right but hard", and a part of their slope
# along sureness, both with what is usual (a normal deviation, of the slope's logarithm), and what counts as a clearly
# better fit. Chosen on sites with noise, blur and mixed cells (seeds 100 and 101 of benchmarks/audit_attacks.py) beside
# the sloppy sites of the battery's first seed.
SHIFTS, USUAL_SHIFT = np.arange(0.0, 6.25, 0.25), 0.5
SLOPES, USUAL_SLOPE = (1.0, 0.85, 0.7, 0.5, 0.35, 0.25), 0.5
CLEARLY = 3.5


@dataclass(frozen=True, eq=False)
class Counts:
    """Per site (row) and bin of sureness (column): samples, and those whose given label is not the predicted one."""

    samples: Floats
    differing: Floats
    classes: int

    @property
    def share(self) -> float:
        """c: a wrong label of a hard sample may be the predicted class by chance."""
        return self.classes / (self.classes - 1)


@dataclass(frozen=True, eq=False)
class Explanation:
    """One fit: how hard the samples of each bin are, and which rate of wrong labels each site has."""

    value: float  # log-likelihood, less what alpha, beta and delta cost
    alpha: float
    beta: float
    common: float  # rho_0
    excess: Floats  # delta, per site
    hard: Floats  # h, per bin

    @cached_property
    def rates(self) -> Floats:
        """rho: the rate of wrong labels at each site."""
        return self.common + self.excess


@dataclass(frozen=True, eq=False)
class Range:
    """The fits of all rho_0 that were tried, and which of them the counts do not reject."""

    fits: list[Explanation]

    def allowed(self, within: float) -> list[Explanation]:
        """The fits that the counts do not reject, in the order of rho_0."""
        return [fit for fit in self.fits if fit.value >= self.mid.value - within]

    @property
    def low(self) -> Explanation:
        """The explanation with the fewest wrong labels."""
        return self.allowed(WITHIN_FEWEST)[0]

    @property
    def mid(self) -> Explanation:
        """The likeliest explanation."""
        return max(self.fits, key=lambda fit: fit.value)

    @property
    def high(self) -> Explanation:
        """The explanation with the most wrong labels."""
        return self.allowed(WITHIN_MOST)[-1]


def explain(counts: Counts, sureness: Floats, grid: tuple[float, ...] = GRID, *, start: float = 0.0) -> Range:
    """The best explanation for each rho_0 of the grid; `sureness` is t, per bin, `start` the first log of beta."""
    first = np.concatenate([[1.0, start], np.full(len(counts.samples), 0.01)])
    fits, last = [], first
    for common in grid:
        tried = [fitted(counts, sureness, common, begin) for begin in (first, last)]
        found, last = max(tried, key=lambda one: one[0].value)
        fits.append(found)
    return Range(fits)


def fitted(counts: Counts, sureness: Floats, common: float, begin: Floats) -> tuple[Explanation, Floats]:
    """The best alpha, beta and delta for one rho_0, from one start, and the parameters as they are searched."""
    from scipy.optimize import minimize

    bounds = [(-8.0, 8.0), (-4.0, 2.5)] + [(0.0, max(LARGEST - common, 0.0))] * len(counts.samples)
    result = minimize(
        lambda found: negative(found, counts, sureness, common), begin, jac=True, method="L-BFGS-B", bounds=bounds
    )
    alpha, log_beta, excess = float(result.x[0]), float(result.x[1]), np.asarray(result.x[2:])
    hard = hardness(alpha, float(np.exp(log_beta)), sureness, counts.share)
    found = Explanation(-float(result.fun), alpha, float(np.exp(log_beta)), common, excess, hard)
    return found, np.asarray(result.x)


def hardness(alpha: float, beta: float, sureness: Floats, share: float) -> Floats:
    """h: the share of right labels that differ from the prediction, per bin; at most that of a blind guess."""
    return np.minimum(logistic(-alpha - beta * sureness), 1 / share)


def logistic(value: Floats) -> Floats:
    """1 / (1 + exp(-value)), for any value."""
    return np.asarray(0.5 * (1 + np.tanh(value / 2)))


def negative(found: Floats, counts: Counts, sureness: Floats, common: float) -> tuple[float, Floats]:
    """What is minimised, and its slope: the negative log-likelihood with the costs of the parameters."""
    alpha, log_beta, excess = found[0], found[1], found[2:]
    beta = np.exp(log_beta)
    free = logistic(-alpha - beta * sureness)
    hard = np.minimum(free, 1 / counts.share)
    rates = common + excess
    differ = np.clip(hard + rates[:, None] * (1 - counts.share * hard), LEAST, 1 - LEAST)
    agreeing = counts.samples - counts.differing
    likelihood = (counts.differing * np.log(differ) + agreeing * np.log1p(-differ)).sum()
    costs = DEAR * excess.sum() + 0.02 * alpha**2 + 0.05 * log_beta**2
    by_differ = counts.differing / differ - agreeing / (1 - differ)
    by_hard = (by_differ * (1 - counts.share * rates[:, None])).sum(0) * np.where(free < 1 / counts.share, 1, 0)
    along = by_hard * -hard * (1 - hard)
    by_excess = (by_differ * (1 - counts.share * hard)).sum(1)
    slope = np.concatenate(
        [[along.sum() - 0.04 * alpha, (along * beta * sureness).sum() - 0.1 * log_beta], by_excess - DEAR]
    )
    return costs - likelihood, -slope


@dataclass(frozen=True, eq=False)
class Excess:
    """What each site has on top of the common rate: the smallest and the largest that its counts do not reject."""

    least: Floats
    most: Floats
    hard: Floats  # per site and bin: h where that smallest excess holds, harder than the common one where need be
    harder: NDArray[np.bool_]  # per site: the common h demands an excess, one of its own does not


def excess_range(counts: Counts, fit: Explanation, sureness: Floats) -> Excess:
    """delta of every site, at 5 % over all sites, from the h of all sites.

    A site whose samples are harder at the same sureness, as from a worse scanner, differs more too, but less and less
    where the models are sure, which wrong labels do not. So an h of its own must fit clearly worse than an excess;
    otherwise there is none. Where an excess with an h of its own fits clearly better, that decides how much.
    """
    from scipy.stats import norm

    within = float(norm.isf(0.05 / len(counts.samples)) ** 2 / 2)
    excess = np.arange(0.0, LARGEST - fit.common + STEP / 2, STEP)
    rates = fit.common + excess
    found = likelihoods(counts.samples, counts.differing, fit.hard, rates, counts.share)
    allowed = found >= found.max(1, keepdims=True) - within
    least, most = excess[allowed.argmax(1)], excess[len(excess) - 1 - allowed[:, ::-1].argmax(1)]
    demanded, hard = least >= STRAY, np.tile(fit.hard, (len(least), 1))
    own, cost = harder_than(fit, sureness, counts.share)
    for site in np.flatnonzero(demanded).tolist():
        tried = likelihoods(counts.samples[site], counts.differing[site], own, rates, counts.share) - cost[:, None]
        best, alike = tried.max(), found[site].max()
        if tried[:, 0].max() > max(best, alike) - max(CLEARLY, within):
            least[site] = 0.0
        elif best > alike + CLEARLY:
            place = int((tried >= best - within).any(0).argmax())
            least[site], hard[site] = excess[place], own[tried[:, place].argmax()]
    stray = least < STRAY
    return Excess(np.where(stray, 0.0, least), most, hard, stray & demanded)


def harder_than(fit: Explanation, sureness: Floats, share: float) -> tuple[Floats, Floats]:
    """The h that a site with harder samples may have, and what each costs, because a site is seldom far from others."""
    shift, slope = (one.ravel() for one in np.meshgrid(SHIFTS, SLOPES))
    found = logistic(shift[:, None] - fit.alpha - slope[:, None] * fit.beta * sureness)
    cost = (shift / USUAL_SHIFT) ** 2 / 2 + (np.log(slope) / USUAL_SLOPE) ** 2 / 2
    return np.minimum(found, 1 / share), cost


def likelihoods(samples: Floats, differing: Floats, hard: Floats, rates: Floats, share: float) -> Floats:
    """The log-likelihoods of counts, a row each (or one row for all h), under each h and each rate of wrong labels."""
    differ = np.clip(hard[..., None, :] + rates[:, None] * (1 - share * hard[..., None, :]), LEAST, 1 - LEAST)
    agreeing = samples - differing
    return np.asarray((differing[..., None, :] * np.log(differ) + agreeing[..., None, :] * np.log1p(-differ)).sum(-1))


def surest_differ(counts: Counts, share: float) -> float:
    """The share of differing labels in the surest bins that hold this share of all samples; the last bin in part."""
    samples, differing = counts.samples.sum(0)[::-1], counts.differing.sum(0)[::-1]
    wanted = share * samples.sum()
    before = np.concatenate([[0.0], np.cumsum(samples)[:-1]])
    part = np.clip((wanted - before) / np.maximum(samples, 1), 0, 1)
    return float((part * differing).sum() / max((part * samples).sum(), LEAST))


def rising(part: Floats, whole: Floats) -> Floats:
    """part / whole in every bin, neighbours pooled until no bin is below the one before it; at most 1."""
    blocks: list[list[float]] = []  # part, whole, bins
    for one, every in zip(part.tolist(), whole.tolist(), strict=True):
        blocks.append([one, every, 1])
        while len(blocks) > 1 and ratio(blocks[-2]) >= ratio(blocks[-1]):
            last = blocks.pop()
            blocks[-1] = [before + now for before, now in zip(blocks[-1], last, strict=True)]
    return np.concatenate([np.full(int(bins), ratio([one, every])) for one, every, bins in blocks])


def ratio(block: list[float]) -> float:
    """The share of a block; one that holds nothing joins the block before it."""
    return min(block[0] / block[1], 1.0) if block[1] > 0 else (1.0 if block[0] > 0 else 0.0)
