"""The coordinator's half of an audit: it asks all sites for counts, adds them up and concludes what may be claimed.

It is the same whether the sites are in this process or on other machines; nothing here needs a single label.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from fedwinnow.auditing.audit_folder import FEWEST_OF_CLASS, SiteLabels
from fedwinnow.auditing.claims import (
    ClassCounts,
    CommonFinding,
    Decoys,
    Known,
    Opinions,
    SiteCounts,
    finding_of,
    where_errors_go,
)
from fedwinnow.auditing.judges import CANDIDATES
from fedwinnow.auditing.judging_models import SiteOpinions
from fedwinnow.auditing.site_half import SiteHalf, Sums, Told
from fedwinnow.auditing.statements import (
    CALLS,
    CANNOT,
    FEWEST_CALLS,
    NOTHING,
    RANGE,
    SiteFigures,
    Statement,
    statement_of,
)
from fedwinnow.errors import RunError
from fedwinnow.mathematics.strata import first_of_all
from fedwinnow.randomness import Floats, Integers


class AuditedSites(Protocol):
    """The sites of an audit, in this process or on other machines."""

    def ask(self, ask: str, told: dict[int, Told]) -> dict[int, Sums]:
        """The answers of these sites; one that is lost is missing, and is not asked again."""


@dataclass(frozen=True, eq=False)
class SitesHere:
    """Sites in this process."""

    halves: dict[int, SiteHalf]

    def ask(self, ask: str, told: dict[int, Told]) -> dict[int, Sums]:
        return {site: self.halves[site].answer(ask, so_far) for site, so_far in told.items()}


@dataclass(frozen=True, eq=False)
class Claims:
    """What may be said about the labels of all sites."""

    finding: CommonFinding
    decoys: Decoys

    @property
    def known(self) -> Known:
        """The classes that the models know."""
        return self.finding.classes.known


@dataclass(frozen=True)
class AuditWishes:
    """What was asked for besides the models."""

    threshold: float  # of p_wrong
    false_alarms: float | None = None  # it chooses the threshold: the share of calls that may be right labels
    budget: int | None = None  # how many labels to mark for a look
    strata: bool = False  # whether the scores of all sites are put into strata, from which labels may be drawn later


@dataclass(frozen=True, eq=False)
class Conclusion:
    """What the coordinator knows at the end."""

    class_names: tuple[str, ...]
    claims: Claims | None  # None where the models have seen the labels, or gave no probabilities
    threshold: float
    losses: dict[str, float]  # of what a judge chose among, held out
    told: dict[int, Told]  # what every site was told at last
    figures: dict[int, SiteFigures]
    statements: dict[int, Statement]
    scores: dict[int, Integers] = dataclasses.field(default_factory=dict)  # histograms, where they were asked for

    def line(self, site: int, name: str, samples: int | None) -> dict[str, Any]:
        """What the coordinator knows about a site; None where it concerns too few samples to be told."""
        found, said = self.figures[site], self.statements[site]
        hidden = not found.called and found.least > 1 and said.said == RANGE
        return {
            "site": name,
            "samples": samples,
            "judged": found.judged,
            "to_review": None if hidden else found.called,
            **said.as_value(),
        }

    def as_value(self) -> dict[str, Any]:
        """What is claimed about all sites together, as values."""
        said = list(self.statements.values())
        if self.claims is None:
            return {"said": CANNOT, "reason": said[0].reason, "skill": None, "calls": 0}
        ranks = (CALLS, RANGE, CANNOT, NOTHING)
        together = next((word for word in ranks if any(one.said == word for one in said)), CANNOT)
        calls = sum(one.called for one in self.figures.values())
        finding, names, enough = self.claims.finding, self.class_names, calls >= FEWEST_CALLS
        return {
            "said": together,
            "reason": next(one.reason for one in said if one.said == together) if said else "",
            "skill": round(finding.skill, 4),
            "skilled": finding.skilled,
            "recognised": {
                name: None if np.isnan(share) else round(float(share), 4)
                for name, share in zip(names, finding.classes.recognised, strict=True)
            },
            "unknown_classes": [name for name, known in zip(names, self.claims.known, strict=True) if not known],
            "rates": rates_as_value(finding) if finding.skilled else None,
            "calls": calls,
            "precision_at_least": sum(one.called_p for one in self.figures.values()) / calls if enough else None,
            "recall": self.claims.decoys.recall(self.threshold) if enough else None,
        }


def rates_as_value(finding: CommonFinding) -> dict[str, float]:
    """The rates of wrong labels common to all sites that the counts allow, and the one that is claimed."""
    allowed = finding.range
    return {
        "low": allowed.low.common,
        "mid": allowed.mid.common,
        "high": allowed.high.common,
        "claimed": finding.explanation.common,
    }


class ServerHalf:
    """Asks one question after the other, and remembers what each site was told."""

    def __init__(self, sites: AuditedSites, numbers: list[int], class_names: tuple[str, ...], least: int = 0) -> None:
        self.sites, self.class_names, self.least = sites, class_names, least
        self.told = {number: Told() for number in numbers}

    def ask(self, ask: str) -> dict[int, Sums]:
        """The answers; a site that does not answer takes no further part."""
        answers = self.sites.ask(ask, self.told)
        self.told = {site: so_far for site, so_far in self.told.items() if site in answers}
        if not self.told:
            raise RunError("no site is left that could be audited.")
        return {site: answers[site] for site in self.told}

    def tell(self, **news: Any) -> None:
        """Tell all sites the same."""
        self.told = {site: dataclasses.replace(so_far, **news) for site, so_far in self.told.items()}

    def tell_each(self, name: str, values: dict[int, Any]) -> None:
        """Tell each site its own."""
        self.told = {site: dataclasses.replace(one, **{name: values[site]}) for site, one in self.told.items()}

    def conclude(self, wishes: AuditWishes) -> Conclusion:
        """All questions, in their order."""
        losses = self.chosen_judge()
        claims = self.claims()
        threshold = self.threshold(wishes, claims)
        self.tell(threshold=threshold)
        scores = self.scores() if wishes.strata or wishes.budget is not None else {}
        if wishes.budget is not None:
            self.mark(scores, wishes.budget)
        figures = {site: self.figures_from(sums) for site, sums in self.ask("figures").items()}
        statements = {site: statement_of(self.told[site].finding, found) for site, found in figures.items()}
        return Conclusion(self.class_names, claims, threshold, losses, self.told, figures, statements, scores)

    def chosen_judge(self) -> dict[str, float]:
        """Where a judge has several opinions: take those that predict the given labels best; their mean losses."""
        answers = self.ask("losses")
        if not all(answers.values()):
            return {}
        labels = max(float(np.sum([sums["labels"] for sums in answers.values()])), 1.0)
        losses = np.sum([sums["losses"] for sums in answers.values()], 0) / labels
        self.tell(best=int(losses.argmin()))
        return {name: round(float(loss), 6) for name, loss in zip(CANDIDATES, losses, strict=True)}

    def claims(self) -> Claims | None:
        """From counts to what may be claimed; None where the models have seen the labels, or gave no probabilities."""
        answers = self.ask("classes")
        given = np.sum([sums["given"] for sums in answers.values()], 0)
        self.tell(common=given >= FEWEST_OF_CLASS)
        if not all("predicted" in sums for sums in answers.values()):
            return None
        by_class = ClassCounts.sum([ClassCounts(**sums) for sums in answers.values()])
        self.tell(known=by_class.known)
        sure = self.ask("sureness")
        commonest = sum(float(np.where(by_class.known, sums["given"], 0.0).max()) for sums in answers.values())
        finding = finding_of([SiteCounts(**sums) for sums in sure.values()], by_class, commonest)
        self.tell_each("finding", {site: finding.at(place) for place, site in enumerate(sure)})
        self.tell(going=where_errors_go(np.sum([sums["errors"] for sums in self.ask("errors").values()], 0)))
        decoys = Decoys.sum([Decoys(**sums) for sums in self.ask("decoys").values()])
        self.tell(limits=decoys.limits)
        return Claims(finding, decoys)

    def threshold(self, wishes: AuditWishes, claims: Claims | None) -> float:
        """The threshold that was asked for, or the lowest with no more right labels among the calls than wanted."""
        if wishes.false_alarms is None:
            return wishes.threshold
        if claims is None:
            return 1.0
        return threshold_for(
            np.sum([sums["labels"] for sums in self.ask("hundredths").values()], 0), wishes.false_alarms
        )

    def scores(self) -> dict[int, Integers]:
        """The histogram of the scores of each site."""
        return {site: sums["labels"].astype(np.int64) for site, sums in self.ask("scores").items()}

    def mark(self, counts: dict[int, Integers], budget: int) -> None:
        """Tell each site how many of its labels are among the first so many of all, from histograms of the scores."""
        many = first_of_all(list(counts.values()), budget)
        self.tell_each("look", dict(zip(counts, many, strict=True)))

    def figures_from(self, sums: Sums) -> SiteFigures:
        """What a site has told of its verdict."""
        return SiteFigures(
            judged=int(sums["judged"][0]),
            here=int(sums["here"][0]),
            called=int(sums["called"][0]),
            called_p=float(sums["called_p"][0]),
            unknown=tuple(self.class_names[number] for number in np.flatnonzero(sums["unknown"]).tolist()),
            least=self.least,
        )


def threshold_for(counts: Floats, false_alarms: float) -> float:
    """The lowest threshold at which no more than this share of calls should be right labels; 1 if there is none.

    `counts` are the labels in hundredths of p_wrong.
    """
    labels = np.cumsum(counts[:0:-1])[::-1]  # at 0.01 and above, at 0.02 and above, ...
    right = np.cumsum((counts[1:] * (1 - np.arange(1, 101) / 100))[::-1])[::-1]
    allowed = np.flatnonzero((right <= false_alarms * labels) & (labels > 0))
    return float((allowed[0] + 1) / 100) if len(allowed) else 1.0


def bare_sites(sites: list[Opinions], classes: int, least: int = 0) -> tuple[ServerHalf, dict[int, SiteHalf]]:
    """Sites of which nothing is known but opinions, and their coordinator."""
    names = tuple(map(str, range(classes)))
    halves = {}
    for number, one in enumerate(sites):
        none, rows = np.zeros(0, np.int64), np.arange(len(one.given))
        opinions = SiteOpinions(np.zeros(len(rows)), one.predicted, none, none, one.classes)
        halves[number] = SiteHalf(SiteLabels(str(number), names, one.given, rows, rows), opinions, least)
    return ServerHalf(SitesHere(halves), list(halves), names, least), halves


def claims_of(sites: list[Opinions], classes: int, least: int = 0) -> tuple[Claims, list[Floats]]:
    """The claims about such sites, and p_wrong of the labels of each."""
    server, halves = bare_sites(sites, classes, least)
    claims = server.claims()
    assert claims is not None
    return claims, [half.p_wrong(server.told[number]) for number, half in halves.items()]
