"""What follows from looks, in numbers and in words; the page, the report and the terminal say the same."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fedwinnow.auditing.looks import ENOUGH, Findings, LookCounts
from fedwinnow.mathematics.look_curves import Estimate, Listed

LIST, NOT_WORTH, OPEN = "a list", "not worth it", "open"
HALF = 0.5
SHORTEST = 10  # labels of a list that settles something
TOP = 0.02  # of all labels; if hardly any of these are wrong, going through the list from the top is not worth it
FEWEST_CALLS = 20  # below this there is a number and no percentage
DEFAULT_COST = 0.2
FURTHER = 30  # looks that are proposed where it is open
SHORTEST_CURVE = 100  # looks


@dataclass(frozen=True)
class Settled:
    """What can be said of the list of labels from the top, and which part of it shows that."""

    word: str
    shown: Listed


def settled_by(estimate: Estimate) -> Settled:
    """A list of which at least half is wrong, or that the top is not worth it, or that it is open."""
    held = [one for one in estimate.lists() if one.labels >= SHORTEST and one.low >= HALF - 1e-9]
    if held:
        return Settled(LIST, held[-1])
    top = estimate.first(max(1, math.ceil(TOP * int(estimate.sizes.sum()))))
    return Settled(NOT_WORTH if top.high < HALF else OPEN, top)


def percent(share: float) -> str:
    """A share in per cent."""
    return f"{100 * share:.0f} %"


def between(one: Listed) -> str:
    """The interval in words."""
    return f"{percent(one.low)} to {percent(one.high)}"


def sentence(settled: Settled, tally: LookCounts, planned: int) -> str:
    """What was found, in one or two sentences."""
    one, looks = settled.shown, f"{tally.total} looks"
    if settled.word == LIST:
        return (
            f"At least {percent(one.low)} of the first {one.labels} labels are wrong; expected are {percent(one.mean)} "
            f"(90 % interval {between(one)}, from {looks})."
        )
    if settled.word == NOT_WORTH:
        return (
            f"At most {percent(one.high)} of the first {one.labels} labels are wrong; expected are {percent(one.mean)} "
            f"(90 % interval {between(one)}, from {looks}). Going through the labels from the top is not worth it."
        )
    return (
        f"It is still open: of the first {one.labels} labels {between(one)} are wrong (90 % interval, from {looks}). "
        f"More looks may settle it: --anchor {planned + FURTHER}."
    )


def warning(tally: LookCounts) -> str:
    """That wrong labels are found as often at the bottom as at the top, or that reviewers differ; else nothing."""
    said = []
    looked, found = tally.looked.sum(axis=0), tally.found.sum(axis=0)
    half = np.cumsum(looked) <= looked.sum() / 2
    if found.sum() >= 3 and looked[half].sum() and looked[~half].sum():
        upper, lower = found[half].sum() / looked[half].sum(), found[~half].sum() / looked[~half].sum()
        if lower >= upper:
            said.append(
                "Wrong labels are found as often deep in the order as at its top: the order is of no use here, or "
                "answers are often wrong. A second person should look at the same labels."
            )
    if tally.differ:
        said.append(
            f"Two people differ on {tally.differ} of {tally.both} labels, so {percent(tally.error)} of the answers are "
            "taken to be wrong, which makes the intervals wider."
        )
    return " ".join(said)


def figures(
    estimate: Estimate, tally: LookCounts, *, threshold: float, cost: float, planned: int, whose: str
) -> dict[str, Any]:
    """All that is written down and shown about one site, or about all together."""
    if tally.total < ENOUGH:
        return {
            "looked": tally.total,
            "found_wrong": round(float(tally.found.sum()), 2),
            "said": f"{tally.total} of at least {ENOUGH} looks that are needed before anything can be said.",
            "settled": None,
        }
    settled = settled_by(estimate)
    calls = estimate.calls(threshold)
    worth = estimate.worth(cost)
    return {
        "looked": tally.total,
        "found_wrong": round(float(tally.found.sum()), 2),
        "of": whose,
        "reviewer_error": round(tally.error, 4),
        "seen_by_two": tally.both,
        "differ": tally.differ,
        "settled": settled.word,
        "said": sentence(settled, tally, planned),
        "warning": warning(tally),
        "shown": rounded(settled.shown),
        "calls": rounded(estimate.first(calls)) if calls >= FEWEST_CALLS else None,
        "called": calls,
        "all": rounded(estimate.first(int(estimate.sizes.sum()))),
        "lists": [rounded(one) for one in estimate.lists()],
        "worth": worth,
        "cost": cost,
        "strata": strata_of(estimate, tally),
        "budget": budget_of(estimate, cost),
    }


def rounded(one: Listed) -> dict[str, Any]:
    """A list as values."""
    return {name: round(value, 4) for name, value in asdict(one).items()}


def strata_of(estimate: Estimate, tally: LookCounts) -> list[dict[str, Any]]:
    """Per stratum: labels, what a site would send, and the expected share of wrong labels."""
    columns = (estimate.sizes, tally.looked.sum(axis=0), tally.found.sum(axis=0), estimate.p_wrong)
    return [
        {
            "labels": int(size),
            "looked": int(looked),
            "found_wrong": round(float(found), 2),
            "p_wrong": round(float(p), 6),
        }
        for size, looked, found, p in zip(*columns, strict=True)
    ]


def budget_of(estimate: Estimate, cost: float) -> list[list[float]]:
    """Points of the budget curve: after so many looks from the top, so many wrong labels are expected to be found.

    It ends some way behind the last look that is worth it.
    """
    ends = [0, *np.cumsum(estimate.sizes).tolist()]
    enough = max(SHORTEST_CURVE, 2 * estimate.worth(cost))
    last = next((place for place, end in enumerate(ends) if end >= enough), len(ends) - 1)
    return [[end, round(estimate.expected(end), 1)] for end in ends[: last + 1]]


def worth_in_words(values: dict[str, Any]) -> str:
    """How many further looks are worth it."""
    if values["settled"] is None:
        return ""
    price = f"if a look costs {values['cost']:g} of what a corrected label is worth"
    if not values["worth"]:
        return f"No further look is worth it, {price}."
    return f"{values['worth']} further looks, from the top of the order, are worth it, {price}."


def of_findings(findings: Findings, *, threshold: float, cost: float, planned: int) -> dict[str, Any]:
    """The figures of all labels together."""
    whose = "all sites" if len(findings.survey.sites) > 1 else "this site"
    return figures(findings.together, findings.tally, threshold=threshold, cost=cost, planned=planned, whose=whose)
