"""What an audit may claim: from held-out opinions to a cautious p_wrong, or to "cannot tell".

A site and the coordinator take turns, and only counts leave the site:

1. the site counts its labels by class, and how often the models agree; the coordinator says which classes are known;
2. the site counts, by how sure the models are, its labels and those that are not the predicted class; the coordinator
   explains the counts of all sites by hard samples and wrong labels, as cautiously as they allow;
3. the site counts which labels stand where the models are sure of another class; the coordinator adds them up;
4. the site counts how many labels are as odd as wrong ones would be; the coordinator divides the expected by the real;
5. the site has p_wrong of every label.

What cannot be known without an assumption is not claimed: where the models know little, where the counts fit the
explanation that no label is wrong, and in classes that the models do not know.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedwinnow.mathematics.disagreement import (
    Counts,
    Explanation,
    Range,
    excess_range,
    explain,
    logistic,
    rising,
    surest_differ,
)
from fedwinnow.randomness import Floats, Integers

EDGES = np.arange(-3.0, 15.25, 0.5)  # of bins of sureness; the outermost take everything beyond
ODDS = np.arange(-12.0, 12.25, 0.5)  # of bins of how odd a label is
SUREST = 0.2  # the share of samples on which skill is measured
ENOUGH_SKILL = 0.6
TINY = 1e-12
RECOGNISED = 0.4  # the share of its labels from which on a class counts as known
# Of hard samples: the share whose true class may be any other one, likely or not to the models. Without it, labels of
# unlikely classes that are right were called: up to 0.41 too much was claimed on the development cases, now 0.10.
UNFORESEEN = 0.15
SMALL_SITE = 10  # sites with fewer samples count as one


Probabilities = NDArray[np.float32]
Known = NDArray[np.bool_]  # per class


@dataclass(frozen=True, eq=False)
class Opinions:
    """What a site knows about its labels: the given ones, and what models believe that have not seen them."""

    given: Integers
    classes: Probabilities  # sample x class

    @cached_property
    def predicted(self) -> Integers:
        """The likeliest class of each sample."""
        return np.asarray(self.classes.argmax(1), np.int64)

    @cached_property
    def believed(self) -> Floats:
        """Probabilities that are never 0, in double precision."""
        return np.maximum(self.classes.astype(np.float64), TINY)

    @cached_property
    def rest(self) -> Floats:
        """The probability of all classes but the predicted one; summed, because 1 - p would be rounded."""
        others = self.believed.copy()
        others[np.arange(len(others)), self.predicted] = 0.0
        return np.asarray(others.sum(1))

    @cached_property
    def bin(self) -> Integers:
        """The bin of sureness of each sample; it does not know the given label."""
        top = self.believed[np.arange(len(self.predicted)), self.predicted]
        return bins_of(np.log(top / self.rest), EDGES)

    @property
    def differs(self) -> NDArray[np.bool_]:
        """Which given labels are not the predicted class."""
        return np.asarray(self.given != self.predicted)


@dataclass(frozen=True, eq=False)
class ClassCounts:
    """What leaves a site first, per class: how often it was given, predicted, and both."""

    given: Floats
    predicted: Floats
    agreed: Floats

    @classmethod
    def of(cls, opinions: Opinions, classes: int, least: int = 0) -> ClassCounts:
        """The counts of one site."""
        sets = (opinions.given, opinions.predicted, opinions.given[~opinions.differs])
        return cls(*(told(np.bincount(one, minlength=classes).astype(np.float64), least) for one in sets))

    @classmethod
    def sum(cls, sites: list[ClassCounts]) -> ClassCounts:
        """The counts of all sites together."""
        return cls(*(np.sum([getattr(site, name) for site in sites], 0) for name in ("given", "predicted", "agreed")))

    @property
    def recognised(self) -> Floats:
        """Per class: the share of its labels that the models predict; NaN for a class without labels."""
        return self.agreed / np.where(self.given > 0, self.given, np.nan)

    @property
    def known(self) -> Known:
        """The classes that the models recognise.

        Labels of a class that the features do not show are right and still differ where the models are sure: they look
        like wrong labels, and no count can tell them apart. Where fewer than two classes are known, none is.
        """
        known = np.nan_to_num(self.recognised) >= RECOGNISED
        return np.asarray(known if known.sum() > 1 else np.zeros_like(known))


@dataclass(frozen=True, eq=False)
class SiteCounts:
    """What leaves a site next, per bin of sureness: labels of known classes, and those that are not predicted."""

    samples: Floats
    differing: Floats


def counts_of(opinions: Opinions, known: Known, least: int = 0) -> SiteCounts:
    """The counts of one site; bins are joined until none stands for 1 to `least` - 1 samples."""
    bins, mine = len(EDGES) - 1, known[opinions.given]
    samples = np.bincount(opinions.bin[mine], minlength=bins).astype(np.float64)
    differing = np.bincount(opinions.bin[mine & opinions.differs], minlength=bins).astype(np.float64)
    return SiteCounts(*(joined(samples, differing, least) if least > 1 else (samples, differing)))


def told(counts: Floats, least: int) -> Floats:
    """Counts without those that concern fewer samples than the least count."""
    return np.where(counts < least, 0.0, counts)


def joined(samples: Floats, differing: Floats, least: int) -> tuple[Floats, Floats]:
    """Join bins from the surest down until each has at least so many differing and agreeing labels, or none of a kind.

    A joined bin stands where most of its samples are. What is left at the end is not told.
    """
    new_samples, new_differing = np.zeros_like(samples), np.zeros_like(differing)
    for part, middle in told_together(samples, (differing, samples - differing), least):
        new_samples[middle], new_differing[middle] = samples[part].sum(), differing[part].sum()
    return new_samples, new_differing


def told_together(counts: Floats, kinds: tuple[Floats, ...], least: int) -> list[tuple[slice, int]]:
    """Which neighbouring bins are told together, from the last down, and the bin that stands for each part.

    A part counts at least `least` samples, and of every kind none or at least as many.
    """
    found, start = [], len(counts)
    for place in range(len(counts) - 1, -1, -1):
        part = slice(place, start)
        of_kinds = [kind[part].sum() for kind in kinds]
        if counts[part].sum() >= least and all(many == 0 or many >= least for many in of_kinds):
            found.append((part, place + int(counts[part].argmax())))
            start = place
    return found


def joined_counts(counts: Floats, least: int) -> Floats:
    """Counts whose bins are joined from the last down until each has at least so many; what is left joins the last."""
    if least < 2:
        return counts
    found, middle = np.zeros_like(counts), 0
    for part, middle in told_together(counts, (), least):
        found[middle] = counts[part].sum()
    if found.any():
        found[middle] += counts.sum() - found.sum()
    return found


@dataclass(frozen=True, eq=False)
class CommonFinding:
    """What the coordinator makes of the counts of all sites."""

    skill: float  # what the surest predictions know beyond the commonest class: 1 all, 0 nothing
    classes: ClassCounts  # of all sites together
    explanation: Explanation  # the cautious one
    range: Range  # the explanations that the counts allow
    rates: Floats  # per site: a rate of wrong labels that the counts demand at least
    most_rates: Floats  # per site: the largest rate that the counts do not reject; without skill it bounds nothing
    hard: Floats  # per site and bin of sureness: how many right labels differ
    harder: NDArray[np.bool_]  # per site: its excess may be harder samples

    @property
    def skilled(self) -> bool:
        """Whether the models know enough for a claim that holds for all sites."""
        return bool(self.skill >= ENOUGH_SKILL)

    def at(self, site: int) -> SiteFinding:
        """What one site gets of it."""
        return SiteFinding(
            skilled=self.skilled,
            known=self.classes.known,
            hard=self.hard[site],
            common=self.explanation.common,
            most=self.range.high.common,
            rate=float(self.rates[site]),
            most_rate=float(self.most_rates[site]),
            somewhere=bool((self.rates > 0).any()),
            harder=bool(self.harder[site]),
        )


@dataclass(frozen=True, eq=False)
class SiteFinding:
    """What a site gets of the finding: what holds for all sites, and its own rates."""

    skilled: bool
    known: Known
    hard: Floats  # per bin of sureness: how many right labels differ
    common: float  # the rate of wrong labels that is claimed for all sites
    most: float  # the largest common rate of wrong labels that the counts do not reject
    rate: float  # of this site: demanded at least
    most_rate: float  # of this site: not rejected
    somewhere: bool  # whether any site has wrong labels
    harder: bool = False  # whether this site differs more than others in a way that harder samples explain as well

    @property
    def nothing_found(self) -> bool:
        """Whether the counts allow no wrong labels at all at this site beyond stray ones."""
        return self.skilled and self.most == 0 and self.rate == 0 and not self.harder

    @property
    def can_tell(self) -> bool:
        """Whether labels of this site may be called wrong."""
        return self.rate > 0


def finding_of(sites: list[SiteCounts], by_class: ClassCounts) -> CommonFinding:
    """Explain the counts of all sites."""
    rows, classes = rows_of(sites), len(by_class.given)
    counts = Counts(
        summed(rows, [site.samples for site in sites]), summed(rows, [site.differing for site in sites]), classes
    )
    skill = skill_of(counts, np.where(by_class.known, by_class.given, 0.0))
    middles = (EDGES[1:] + EDGES[:-1]) / 2
    plain = explain(counts, middles / 3)
    if skill >= ENOUGH_SKILL:
        ranks = ranks_of(counts)
        choices = [(plain.low, middles / 3), (explain(counts, ranks).mid, ranks)]
        chosen, sureness = min(choices, key=lambda one: one[0].common)
    else:
        tried = [explain(counts, middles / 3, (0.0,), start=start).mid for start in (0.0, -3.0)]
        chosen, sureness = max(tried, key=lambda fit: fit.value), middles / 3
    found, high = excess_range(counts, chosen, sureness), excess_range(counts, plain.high, middles / 3)
    most = np.maximum(chosen.common + found.most, plain.high.common + high.most)
    return CommonFinding(
        skill,
        by_class,
        chosen,
        plain,
        (chosen.common + found.least)[rows],
        most[rows],
        found.hard[rows],
        found.harder[rows],
    )


def rows_of(sites: list[SiteCounts]) -> Integers:
    """The row of each site in the counts: its own, or that of all small sites together."""
    small = np.array([site.samples.sum() < SMALL_SITE for site in sites])
    row = np.where(small, 0, np.cumsum(~small) - 1)
    return np.where(small, row.max() + (1 if (~small).any() else 0), row)


def summed(rows: Integers, values: list[Floats]) -> Floats:
    """Values of sites added up by row."""
    found = np.zeros((int(rows.max()) + 1, len(values[0])))
    np.add.at(found, rows, np.stack(values))
    return found


def skill_of(counts: Counts, labels: Floats) -> float:
    """1 - the share of differing labels among the surest samples / that of "always the commonest class"."""
    by_chance = 1 - labels.max() / max(labels.sum(), TINY) if labels.any() else 0.0
    return 1 - surest_differ(counts, SUREST) / by_chance if by_chance > 0 else 0.0


def ranks_of(counts: Counts) -> Floats:
    """A second measure of sureness: the normal quantile of the share of samples below the middle of the bin."""
    from scipy.stats import norm

    samples = counts.samples.sum(0)
    below = (np.cumsum(samples) - samples / 2) / max(samples.sum(), 1)
    return np.asarray(norm.ppf(np.clip(below, 1e-4, 1 - 1e-4)))


def sure_errors(opinions: Opinions, finding: SiteFinding, classes: int, least: int = 0) -> Floats:
    """W: how often label j stands where the models are sure of k, in bins with more wrong labels than hard ones."""
    sure = finding.hard[opinions.bin] < finding.rate / 2
    found = np.zeros((classes, classes))
    chosen = opinions.differs & sure & finding.known[opinions.given]
    np.add.at(found, (opinions.predicted[chosen], opinions.given[chosen]), 1)
    return told(found, least)


def where_errors_go(counted: Floats) -> Floats:
    """T: the probability that a wrong label of class k is j; one imagined error of each class keeps it from being 0."""
    classes = len(counted)
    share = counted + 1 / (classes - 1)
    np.fill_diagonal(share, 0.0)
    return np.asarray(share / share.sum(1, keepdims=True))


@dataclass(frozen=True, eq=False)
class Odds:
    """For every sample and class: how odd this label would be there, and how many wrong ones to expect."""

    log_odds: Floats  # u
    wrong: Floats

    @classmethod
    def of(cls, opinions: Opinions, hard: Floats, rate: float, going: Floats) -> Odds:
        """The odds at a site with this rate of wrong labels."""
        here = hard[opinions.bin][:, None]
        likely = opinions.believed / opinions.rest[:, None]  # which class a sample has that is not the predicted one
        true = here * (
            (1 - UNFORESEEN) * likely + UNFORESEEN / (likely.shape[1] - 1)
        )  # the posterior of the true class
        np.put_along_axis(true, opinions.predicted[:, None], 1 - here, axis=1)
        right, wrong = (1 - rate) * true, rate * (true @ going)
        return cls(np.log(np.maximum(wrong, TINY)) - np.log(np.maximum(right, TINY)), wrong)

    def given(self, labels: Integers) -> Floats:
        """The log-odds of the given labels."""
        return np.asarray(self.log_odds[np.arange(len(labels)), labels])

    def decoys(self, labels: Integers, known: Known, least: int = 0) -> Decoys:
        """Per bin of log-odds: how many wrong labels of known classes should be there, and how many labels are.

        Bins are joined until none stands for 1 to `least` - 1 labels, or for so few samples that might be wrong.
        """
        bins = len(ODDS) - 1
        place, wrong = bins_of(self.log_odds[:, known], ODDS), self.wrong[:, known]
        expected = np.asarray(np.bincount(place.ravel(), wrong.ravel(), bins), np.float64)
        found = np.bincount(bins_of(self.given(labels)[known[labels]], ODDS), minlength=bins).astype(np.float64)
        if least < 2:
            return Decoys(expected, found)
        there = np.zeros((len(place), bins), bool)
        np.put_along_axis(there, place, True, axis=1)
        told = Decoys.none()
        for part, middle in told_together(found, (there.sum(0),), least):
            told.expected[middle], told.found[middle] = expected[part].sum(), found[part].sum()
        return told


@dataclass(frozen=True, eq=False)
class Decoys:
    """What leaves a site last, per bin of log-odds: expected wrong labels, and labels."""

    expected: Floats
    found: Floats

    @classmethod
    def none(cls) -> Decoys:
        """Those of a site at which nothing is called."""
        return cls(np.zeros(len(ODDS) - 1), np.zeros(len(ODDS) - 1))

    @classmethod
    def sum(cls, sites: list[Decoys]) -> Decoys:
        """Those of all sites together."""
        return cls(np.sum([site.expected for site in sites], 0), np.sum([site.found for site in sites], 0))

    @cached_property
    def limits(self) -> Floats:
        """The largest p_wrong of each bin: expected over found labels, rising; less where few are found."""
        above = np.cumsum(self.found[::-1])[::-1]
        return rising(self.expected, self.found) * above / (above + 1)

    def recall(self, threshold: float) -> float | None:
        """The share of the expected wrong labels that would be called; None where none are expected."""
        middles = (ODDS[1:] + ODDS[:-1]) / 2
        called = p_wrong_of(middles, self.limits) >= threshold
        return float(self.expected[called].sum() / self.expected.sum()) if self.expected.sum() > 0 else None


def p_wrong_of(log_odds: Floats, limits: Floats) -> Floats:
    """The cautious probability that a label with these log-odds is wrong."""
    return np.minimum(logistic(log_odds), limits[bins_of(log_odds, ODDS)])


def bins_of(values: Floats, edges: Floats) -> Integers:
    """The bin of each value; the outermost bins take everything beyond."""
    place = np.floor((values - edges[0]) / (edges[1] - edges[0]))
    return np.asarray(np.clip(place, 0, len(edges) - 2), np.int64)


def odds_at(opinions: Opinions, finding: SiteFinding, going: Floats) -> Odds | None:
    """The odds at a site; None where no label may be called wrong."""
    return Odds.of(opinions, finding.hard, finding.rate, going) if finding.can_tell else None


def own_p_wrong(opinions: Opinions, finding: SiteFinding, odds: Odds | None, limits: Floats) -> Floats:
    """p_wrong of a site's labels; 0 where nothing was found, NaN where it cannot be told."""
    if odds is not None:
        found = p_wrong_of(odds.given(opinions.given), limits)
    else:
        found = np.full(len(opinions.given), 0.0 if finding.nothing_found else np.nan)
    return np.where(finding.known[opinions.given], found, np.nan)
