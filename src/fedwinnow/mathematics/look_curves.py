"""What a person's looks say about all labels: curves of the share of wrong labels over depth, weighed by the looks.

A curve falls from a share at the top to a floor. Nothing is fitted: every curve of a grid gets a weight, which is its
prior times the likelihood of the looks. The reviewer's answers are wrong at a rate of 5 % or more, so one odd answer
proves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedwinnow.mathematics.strata import Strata
from fedwinnow.randomness import Floats, Integers, frozen_generator

CEILINGS = (0.3, 0.5, 0.7, 0.85, 0.95, 0.995)
FLOORS = {0.0: 0.2, 0.003: 0.15, 0.01: 0.15, 0.03: 0.2, 0.1: 0.15, 0.2: 0.1, 0.4: 0.05}  # with their prior
SLOPES = (0.1, 0.3, 0.7, 1.5)
MIDDLES = 26
FLAT = 0.2  # the prior of curves that do not fall
PSEUDO_LOOKS = 5.0  # how many looks an opinion formed without looks is worth
REVIEWER_ERROR = 0.05  # assumed at least: how many answers of a reviewer are wrong
MOST_ERROR = 0.4  # a reviewer who errs more often says nothing
SURE_PAIRS = 10.0  # so many labels seen by two people are taken to have shown the assumed error already
DRAWS = 1000
INTERVAL = (0.05, 0.95)

SHIFTS = np.linspace(-4.0, 4.0, 9)  # of the logit of a site
SPREADS = (0.1, 1.0, 2.0)  # of these shifts, equally likely before any look


@dataclass(frozen=True, eq=False)
class Curves:
    """Shares of wrong labels per stratum, a row per curve, and how likely each curve is."""

    theta: Floats  # curves x strata
    weight: Floats  # per curve; the sum is 1

    @classmethod
    def over(cls, strata: Strata) -> Curves:
        """All curves of the grid, with their prior."""
        depth = strata.depth
        middles = np.linspace(-np.log(strata.sizes.sum()) - 1, 1.0, MIDDLES)
        pairs = [(top, floor, prior) for top in CEILINGS for floor, prior in FLOORS.items() if floor < top]
        top, floor, prior = (column[:, None, None] for column in np.array(pairs).T)
        slope, middle = np.array(SLOPES)[None, :, None], middles[None, None, :]
        falls = logistic((middle[..., None] - depth) / slope[..., None])
        theta = floor[..., None] + (top - floor)[..., None] * falls
        weight = np.broadcast_to(prior, theta.shape[:-1]).reshape(-1)
        flat = np.array(list(FLOORS.items()))
        return cls(
            np.concatenate([theta.reshape(-1, len(strata)), np.repeat(flat[:, :1], len(strata), axis=1)]),
            np.concatenate([(1 - FLAT) * weight / weight.sum(), FLAT * flat[:, 1] / flat[:, 1].sum()]),
        )

    def with_opinions(self, opinions: list[Floats], error: float = REVIEWER_ERROR) -> Curves:
        """The prior with opinions formed without looks: a mean share of wrong labels per stratum each.

        Each opinion counts as a few looks spread over the strata, and is as likely to be of use as none at all.
        """
        strata = self.theta.shape[1]
        looked = np.full(strata, PSEUDO_LOOKS / strata)
        parts = [self.weight]
        for shares in opinions:
            answered = looked * said_wrong(np.asarray(shares), error)
            parts.append(self.after(looked, answered, error).weight)
        return replace(self, weight=np.mean(parts, axis=0))

    def after(self, looked: Floats | Integers, found: Floats | Integers, error: float = REVIEWER_ERROR) -> Curves:
        """The curves after looks: `looked` and `found` wrong, per stratum."""
        logarithm = np.log(self.weight) + log_likelihood(self.theta, looked, found, error)
        return replace(self, weight=normalised(logarithm))

    @property
    def mean(self) -> Floats:
        """The expected share of wrong labels in each stratum."""
        return np.asarray(self.weight @ self.theta)

    def likely(self, share: float = 0.5) -> Floats:
        """The chance that at least this share of each stratum is wrong."""
        return np.asarray(self.weight @ (self.theta >= share))

    def drawn(self, draws: int, luck: np.random.RandomState) -> Floats:
        """Curves by lot, as likely as they are: draws x strata."""
        return np.asarray(self.theta[by_lot(self.weight, draws, luck)])


def logistic(value: Floats) -> Floats:
    """1 / (1 + exp(-value)), for any value."""
    return np.asarray(0.5 * (1 + np.tanh(value / 2)))


def said_wrong(theta: Floats, error: float) -> Floats:
    """The chance that a reviewer says "wrong" of a label that is wrong with a chance of theta."""
    return np.asarray(error + (1 - 2 * error) * theta)


def log_likelihood(
    theta: Floats, looked: Floats | Integers, found: Floats | Integers, error: float = REVIEWER_ERROR
) -> Floats:
    """ln of the chance of these answers, for each curve."""
    answer = said_wrong(theta, error)
    return np.asarray(np.log(answer) @ found + np.log1p(-answer) @ (np.asarray(looked) - found))


def normalised(logarithm: Floats) -> Floats:
    """Weights with the sum 1 from their logarithms."""
    weight = np.exp(logarithm - logarithm.max())
    return np.asarray(weight / weight.sum())


def by_lot(weight: Floats, draws: int, luck: np.random.RandomState) -> Integers:
    """Places as likely as their weights."""
    steps = np.cumsum(weight)
    places = np.searchsorted(steps, luck.random_sample(draws) * steps[-1], side="right")
    return np.asarray(np.minimum(places, len(weight) - 1), np.int64)


def error_of_reviewers(both: int, differ: int) -> float:
    """The rate of wrong answers, at least the assumed one, from labels that two people saw and differed on.

    Two people with this rate differ on 2 e (1 - e) of the labels.
    """
    expected = 2 * REVIEWER_ERROR * (1 - REVIEWER_ERROR)
    share = (differ + SURE_PAIRS * expected) / (both + SURE_PAIRS)
    error = (1 - np.sqrt(max(0.0, 1 - 2 * share))) / 2
    return float(np.clip(error, REVIEWER_ERROR, MOST_ERROR))


# --- how many labels are wrong ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Listed:
    """A list of the most suspicious labels: which share of it is wrong, expected and with a 90 % interval."""

    labels: int
    mean: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Estimate:
    """How many labels of each stratum are wrong."""

    sizes: Integers
    looked: Floats
    p_wrong: Floats  # the expected share per stratum
    wrong: Integers  # draws x strata: how many are wrong, as likely as that is

    def first(self, labels: int) -> Listed:
        """The share of wrong labels among the first so many."""
        labels = min(max(labels, 0), int(self.sizes.sum()))
        if labels == 0:
            return Listed(0, 0.0, 0.0, 1.0)
        taken = np.clip(labels - (np.cumsum(self.sizes) - self.sizes), 0, self.sizes)
        whole = self.wrong[:, taken == self.sizes].sum(axis=1).astype(np.float64)
        part = np.flatnonzero((taken > 0) & (taken < self.sizes))
        if len(part):  # which labels of a stratum are the wrong ones is left to chance
            place = int(part[0])
            luck = frozen_generator(0, "part of a stratum", labels)
            count = self.wrong[:, place]
            whole += luck.hypergeometric(count, self.sizes[place] - count, taken[place])
        return listed(labels, whole / labels)

    def lists(self) -> list[Listed]:
        """The lists that end with a stratum."""
        return [self.first(int(end)) for end in np.cumsum(self.sizes)]

    def calls(self, threshold: float) -> int:
        """How many labels are in strata with an expected share of at least the threshold."""
        return int(self.sizes[self.p_wrong >= threshold].sum())

    def expected(self, labels: int) -> float:
        """How many wrong labels are expected among the first so many."""
        taken = np.clip(labels - (np.cumsum(self.sizes) - self.sizes), 0, self.sizes)
        return float((self.wrong.mean(axis=0) * taken / np.maximum(self.sizes, 1)).sum())

    def worth(self, cost: float) -> int:
        """How many further looks are worth it, if a look costs this share of what a corrected label is worth."""
        left = np.maximum(self.sizes - self.looked, 0)
        gain = np.concatenate([[0.0], np.cumsum(left * (self.p_wrong - cost))])
        return round(float(left[: int(gain.argmax())].sum()))


def listed(labels: int, shares: Floats) -> Listed:
    """Mean and interval of drawn shares."""
    low, high = np.quantile(shares, INTERVAL)
    return Listed(labels, float(shares.mean()), float(low), float(high))


def drawn_wrong(
    theta: Floats,
    sizes: Integers,
    looked: Floats | Integers,
    found: Floats | Integers,
    error: float,
    luck: np.random.RandomState,
) -> Integers:
    """How many labels of each stratum are wrong, by lot; the answers about those looked at may be wrong too."""
    seen = np.minimum(np.ceil(np.asarray(looked) - 1e-9), sizes).astype(np.int64)
    called = np.minimum(luck.binomial(1, np.broadcast_to(np.asarray(found) % 1, theta.shape)) + np.floor(found), seen)
    answer = said_wrong(theta, error)
    if_wrong = theta * (1 - error) / answer
    if_right = theta * error / (1 - answer)
    return np.asarray(
        luck.binomial(sizes - seen, theta)
        + luck.binomial(called.astype(np.int64), if_wrong)
        + luck.binomial((seen - called).astype(np.int64), if_right)
    )


def estimate(
    strata: Strata,
    looked: Floats | Integers,
    found: Floats | Integers,
    *,
    opinions: list[Floats] | None = None,
    error: float = REVIEWER_ERROR,
    seed: int = 0,
) -> Estimate:
    """How many labels of each stratum are wrong, from one table of looks."""
    looked, found = np.asarray(looked, np.float64), np.asarray(found, np.float64)
    curves = Curves.over(strata).with_opinions(opinions or []).after(looked, found, error)
    luck = frozen_generator(seed, "looks")
    theta = curves.drawn(DRAWS, luck)
    return Estimate(strata.sizes, looked, curves.mean, drawn_wrong(theta, strata.sizes, looked, found, error, luck))


# --- sites that differ -----------------------------------------------------------------------------------------------


def shifted(theta: Floats, shift: Floats) -> Floats:
    """The share whose log-odds are this much higher; 0 stays 0."""
    odds = np.exp(shift)
    return np.asarray(theta * odds / (1 - theta + theta * odds))


def prior_of_shifts(centre: float) -> Floats:
    """spreads x shifts: how likely each shift is for each spread, around what is thought of the site."""
    distance = (SHIFTS - np.clip(centre, SHIFTS[0], SHIFTS[-1]))[None] / np.array(SPREADS)[:, None]
    weight = np.exp(-0.5 * (distance**2 - (distance**2).min(axis=1, keepdims=True)))
    return np.asarray(weight / weight.sum(axis=1, keepdims=True))


@dataclass(frozen=True, eq=False)
class AnswersOfSite:
    """Answers at one site, and ln of the chance of each under every curve and shift."""

    wrong: Floats  # curves x shifts x parts: ln of the chance of "wrong"
    right: Floats
    looked: Floats  # per part; a part is a stratum, or several that were told together
    found: Floats
    coarse: bool = False  # whether a part may be several strata

    def chance(self) -> Floats:
        """ln of the chance of all answers."""
        return np.asarray(self.wrong @ self.found + self.right @ (self.looked - self.found))

    def of(self, curve: Integers) -> AnswersOfSite:
        """The same for some of the curves."""
        return replace(self, wrong=self.wrong[curve], right=self.right[curve])


@dataclass(frozen=True, eq=False)
class JoinedLooks:
    """What a site found, told for several strata together."""

    looked: Floats  # per part
    found: Floats
    mixing: Floats  # strata x parts: which share of the looks of a part is in a stratum

    @property
    def coarse(self) -> bool:
        """Whether a part is more than one stratum."""
        return bool(((self.mixing > 0).sum(axis=0) > 1).any())

    def over(self, answers: Floats) -> AnswersOfSite:
        """A look of a part is as likely to find something as the looks of its strata are on average."""
        mean = answers @ self.mixing
        return AnswersOfSite(np.log(mean), np.log1p(-mean), self.looked, self.found, coarse=True)


def estimate_sites(
    strata: Strata,
    sizes: Integers,
    looked: NDArray[np.float64],
    found: NDArray[np.float64],
    *,
    opinions: list[Floats] | None = None,
    centres: Floats | None = None,
    error: float = REVIEWER_ERROR,
    seed: int = 0,
    joined: list[JoinedLooks] | None = None,
) -> list[Estimate]:
    """One estimate per site, from tables of sites x strata: one curve for all, and a shift of its log-odds per site.

    `joined`: sites have told what they found for several strata together. Where every part is one stratum, that is the
    same as without.
    """
    centres = np.zeros(len(sizes)) if centres is None else centres
    curves = Curves.over(strata).with_opinions(opinions or [])
    answers = said_wrong(shifted(curves.theta[:, None, :], SHIFTS[None, :, None]), error)  # curves x shifts x strata
    wrong, right = np.log(answers), np.log1p(-answers)
    total = np.log(curves.weight)[:, None] + np.zeros(len(SPREADS))
    told = [AnswersOfSite(wrong, right, looked[site], found[site]) for site in range(len(sizes))]
    if joined is not None and any(one.coarse for one in joined):
        told = [one.over(answers) for one in joined]
        found = np.zeros_like(found)  # which of the labels looked at were wrong is not known
    for site in np.flatnonzero(looked.sum(axis=1)):
        chance = told[site].chance()
        largest = chance.max(axis=1, keepdims=True)
        total += largest + np.log(np.exp(chance - largest) @ prior_of_shifts(centres[site]).T)
    luck = frozen_generator(seed, "looks of sites")
    chosen = by_lot(normalised(total.reshape(-1)), DRAWS, luck)
    curve, spread = chosen // len(SPREADS), chosen % len(SPREADS)
    return [
        one_site(
            curves.theta[curve],
            told[site].of(curve),
            prior_of_shifts(centres[site])[spread],
            (sizes[site], looked[site], found[site]),
            error,
            luck,
        )
        for site in range(len(sizes))
    ]


def one_site(
    theta: Floats,
    told: AnswersOfSite,
    prior: Floats,
    counts: tuple[Integers, Floats, Floats],
    error: float,
    luck: np.random.RandomState,
) -> Estimate:
    """The estimate of a site, given drawn curves."""
    sizes, looked, found = counts
    logarithm = told.chance() + np.log(np.maximum(prior, 1e-300))
    weight = np.exp(logarithm - logarithm.max(axis=1, keepdims=True))
    weight /= weight.sum(axis=1, keepdims=True)
    steps = np.cumsum(weight, axis=1)
    place = (steps < luck.random_sample((len(steps), 1)) * steps[:, -1:]).sum(axis=1).clip(0, len(SHIFTS) - 1)
    # The mean over all shifts varies less than that over the drawn ones.
    mean = sum((weight[:, [one]] * shifted(theta, SHIFTS[one])).mean(axis=0) for one in range(len(SHIFTS)))
    drawn = shifted(theta, SHIFTS[place][:, None])
    seen = np.zeros_like(looked) if told.coarse else looked
    return Estimate(sizes, looked, np.asarray(mean), drawn_wrong(drawn, sizes, seen, found, error, luck))


def summed(parts: list[Estimate]) -> Estimate:
    """All sites together."""
    sizes = np.sum([part.sizes for part in parts], axis=0)
    mean = np.sum([part.p_wrong * part.sizes for part in parts], axis=0) / np.maximum(sizes, 1)
    return Estimate(
        sizes,
        np.sum([part.looked for part in parts], axis=0),
        np.asarray(mean),
        np.sum([part.wrong for part in parts], axis=0),
    )
