"""The site's half of an audit: it keeps what the models think of its labels, and answers the coordinator with counts.

The coordinator asks in this order (`server_half.py`); every question repeats what it has told before, so that a site
needs no memory of it. No answer counts fewer samples than the least count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedwinnow.auditing.audit_folder import FEWEST_OF_SITE, SiteLabels, SiteVerdict, verdict_at
from fedwinnow.auditing.claims import (
    ClassCounts,
    Decoys,
    Odds,
    Opinions,
    SiteFinding,
    counts_of,
    joined_counts,
    odds_at,
    own_p_wrong,
    sure_errors,
    told,
)
from fedwinnow.auditing.judging_models import SiteOpinions
from fedwinnow.mathematics.strata import histogram
from fedwinnow.randomness import Floats

Sums = dict[str, Floats]  # an answer


@dataclass(frozen=True, eq=False)
class Told:
    """What the coordinator has told a site so far."""

    best: int | None = None  # which opinions count, where the judge chooses
    common: NDArray[np.bool_] | None = None  # the classes with enough samples at all sites together
    known: NDArray[np.bool_] | None = None  # the classes that the models know
    finding: SiteFinding | None = None
    going: Floats | None = None  # where errors go: true class x given class
    limits: Floats | None = None  # the largest p_wrong per bin of log-odds
    threshold: float = 0.5
    look: int | None = None  # how many labels of this site a budget allows to look at


class SiteHalf:
    """The answers of one site."""

    def __init__(self, labels: SiteLabels, opinions: SiteOpinions, least: int = 0) -> None:
        self.labels, self.opinions, self.least = labels, opinions, least
        self.classes = len(labels.class_names)
        self.chosen: tuple[int | None, SiteOpinions, Opinions | None] | None = None
        self.held: tuple[SiteFinding, Floats, Odds | None] | None = None

    def answer(self, ask: str, so_far: Told) -> Sums:
        """The counts that answer a question."""
        return ANSWERS[ask](self, so_far)

    # --- the answers, in the order of the questions ------------------------------------------------------------------

    def losses(self, so_far: Told) -> Sums:
        """How well each of the opinions that a judge chooses among predicts the labels; nothing if it does not."""
        if self.opinions.candidates is None:
            return {}
        if len(self.labels.given) < self.least:
            return {"losses": np.zeros(len(self.opinions.candidates)), "labels": np.zeros(1)}
        return {
            "losses": self.opinions.losses(self.labels.given),
            "labels": np.array([float(len(self.labels.given))]),
        }

    def by_class(self, so_far: Told) -> Sums:
        """Labels by class, and how often the models agree; only the first where the models have seen the labels."""
        beliefs = self.beliefs(so_far)
        if beliefs is None:
            given = np.bincount(self.labels.given, minlength=self.classes).astype(np.float64)
            return {"given": told(given, self.least)}
        counts = ClassCounts.of(beliefs, self.classes, self.least)
        return {"given": counts.given, "predicted": counts.predicted, "agreed": counts.agreed}

    def by_sureness(self, so_far: Told) -> Sums:
        """By how sure the models are: labels of known classes, and those that differ."""
        assert so_far.known is not None
        counts = counts_of(self.sure_beliefs(so_far), so_far.known, self.least)
        return {"samples": counts.samples, "differing": counts.differing}

    def errors(self, so_far: Told) -> Sums:
        """Which labels stand where the models are sure of another class."""
        assert so_far.finding is not None
        return {"errors": sure_errors(self.sure_beliefs(so_far), so_far.finding, self.classes, self.least)}

    def decoys(self, so_far: Told) -> Sums:
        """How many labels are as odd as wrong ones would be, and how many wrong ones should be."""
        assert so_far.finding is not None
        odds = self.odds(so_far)
        found = Decoys.none()
        if odds is not None:
            found = odds.decoys(self.labels.given, so_far.finding.known, self.least)
        return {"expected": found.expected, "found": found.found}

    def hundredths(self, so_far: Told) -> Sums:
        """How many labels there are in each hundredth of p_wrong."""
        known = self.p_wrong(so_far)
        known = known[~np.isnan(known)]
        counts = np.bincount((known * 100).astype(np.int64), minlength=101)[:101].astype(np.float64)
        return {"labels": joined_counts(counts, self.least)}

    def scores(self, so_far: Told) -> Sums:
        """The histogram of the scores of the labels that are judged."""
        counts = histogram(self.chosen_opinions(so_far).score[self.enough(so_far)]).astype(np.float64)
        return {"labels": joined_counts(counts[::-1], self.least)[::-1]}

    def figures(self, so_far: Told) -> Sums:
        """What the coordinator gets to know of the verdict."""
        found, least = self.verdict(so_far).figures, self.least
        called = 0 if found.called < least else found.called
        unknown = np.zeros(self.classes)
        if so_far.finding is not None:
            strange = self.enough(so_far) & ~so_far.finding.known[self.labels.given]
            unknown = told(np.bincount(self.labels.given[strange], minlength=self.classes).astype(np.float64), least)
        return {
            "judged": told(np.array([float(found.judged)]), least),
            "here": told(np.array([float(found.here)]), least),
            "called": np.array([float(called)]),
            "called_p": np.array([found.called_p if called else 0.0]),
            "unknown": np.minimum(unknown, 1.0),
        }

    # --- what stays here ---------------------------------------------------------------------------------------------

    def verdict(self, so_far: Told) -> SiteVerdict:
        """What is said about every label of this site."""
        finding, opinions = so_far.finding, self.chosen_opinions(so_far)
        return verdict_at(
            self.labels, opinions, finding, self.p_wrong(so_far), so_far.threshold, self.enough(so_far), so_far.look
        )

    def enough(self, so_far: Told) -> NDArray[np.bool_]:
        """Which labels are judged: those of a class with enough samples, at a site with enough samples."""
        assert so_far.common is not None
        return np.asarray(so_far.common[self.labels.given] & (len(self.labels.given) >= FEWEST_OF_SITE))

    def p_wrong(self, so_far: Told) -> Floats:
        """p_wrong of every label; NaN where it cannot be told."""
        if so_far.finding is None:
            return np.full(len(self.labels.given), np.nan)
        assert so_far.limits is not None
        return own_p_wrong(self.sure_beliefs(so_far), so_far.finding, self.odds(so_far), so_far.limits)

    def chosen_opinions(self, so_far: Told) -> SiteOpinions:
        """The opinions that count."""
        return self.choose(so_far.best)[1]

    def beliefs(self, so_far: Told) -> Opinions | None:
        """The labels beside what models believe that have not seen them; None where there are none."""
        return self.choose(so_far.best)[2]

    def choose(self, best: int | None) -> tuple[int | None, SiteOpinions, Opinions | None]:
        """Take the opinions that the sites have chosen together, and keep them for the next question."""
        if self.chosen is None or self.chosen[0] != best:
            found = self.opinions.with_best(best, self.labels.given)
            beliefs = None if found.classes is None else Opinions(self.labels.given, found.classes)
            self.chosen = best, found, beliefs
        return self.chosen

    def sure_beliefs(self, so_far: Told) -> Opinions:
        """The same where there are."""
        found = self.beliefs(so_far)
        assert found is not None
        return found

    def odds(self, so_far: Told) -> Odds | None:
        """The odds of every label; kept for the next question."""
        finding, going = so_far.finding, so_far.going
        assert finding is not None
        assert going is not None
        if self.held is None or self.held[0] is not finding or self.held[1] is not going:
            self.held = finding, going, odds_at(self.sure_beliefs(so_far), finding, going)
        return self.held[2]


ANSWERS: dict[str, Callable[[SiteHalf, Told], Sums]] = {
    "losses": SiteHalf.losses,
    "classes": SiteHalf.by_class,
    "sureness": SiteHalf.by_sureness,
    "errors": SiteHalf.errors,
    "decoys": SiteHalf.decoys,
    "hundredths": SiteHalf.hundredths,
    "scores": SiteHalf.scores,
    "figures": SiteHalf.figures,
}
