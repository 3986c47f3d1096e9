"""Looks at several sites, summed by a coordinator who has none of their labels.

Each site tells, per stratum of the scores of all sites, how many labels people looked at, and how many they found
wrong. The strata are told to all sites at the end of an audit. Which labels are looked at is drawn by lot and says
nothing about them; what was found is told for neighbouring strata together, until it concerns enough labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedwinnow.auditing.look_figures import figures
from fedwinnow.auditing.looks import ENOUGH, ENOUGH_AT_SITE, JudgedSite, LookCounts, pairs_at
from fedwinnow.auditing.site_half import Sums
from fedwinnow.auditing.update import new_rows, write_updated
from fedwinnow.errors import DataError, UsageError
from fedwinnow.files import Maybe, demand
from fedwinnow.mathematics.look_curves import Estimate, JoinedLooks, estimate_sites, summed
from fedwinnow.mathematics.payload import Payload
from fedwinnow.mathematics.strata import Strata
from fedwinnow.randomness import Floats

NOT_TOLD = -1.0
STRATA = {"last": [int], "sizes": [int]}
LISTED = {"labels": int, "mean": float, "low": float, "high": float}
FIGURES = {
    "looked": int,
    "found_wrong": float,
    "of": str,
    "looked_here": int,
    "reviewer_error": float,
    "seen_by_two": int,
    "differ": int,
    "settled": str,
    "said": str,
    "warning": str,
    "shown": LISTED,
    "calls": Maybe(LISTED),
    "called": int,
    "all": LISTED,
    "lists": [LISTED],
    "worth": int,
    "cost": float,
    "strata": [{"labels": int, "looked": int, "found_wrong": float, "p_wrong": float}],
    "budget": [[float]],
}
LONGEST = 1000  # letters of a sentence
TINY = 1e-9


# --- at a site -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class LooksHere:
    """The looks of one site: per stratum, and how many labels two people looked at."""

    looked: Floats
    found: Floats
    pairs: Floats  # of answers, and how many of them differ

    @classmethod
    def of(cls, folder: Path, strata: Strata) -> LooksHere:
        """From the folder of a site."""
        site = JudgedSite.of(folder)
        looked, found, both, differ = pairs_at(site, strata.places(site.score), len(strata))
        return cls(looked, found, np.array([both, differ], np.float64))

    def told(self, least: int, earlier: Sequence[LooksHere] = ()) -> Sums:
        """What a site tells: `found` of a part stands at its first stratum, `part` says what was joined.

        `earlier`: the looks when it told of them before, with the pairs that it told.
        """
        part, told = np.full(len(self.looked), NOT_TOLD), np.zeros(len(self.looked))
        for number, where in enumerate(parts_of(self.looked, self.found, least, earlier)):
            part[where], told[where.start] = number, self.found[where].sum()
        pairs = self.pairs
        if not all(shows_enough(pairs - one.pairs, least) for one in (NO_PAIRS, *earlier)):
            pairs = earlier[-1].pairs if earlier else np.zeros(2)
        return {"looked": self.looked, "found": told, "part": part, "pairs": pairs}


NO_PAIRS = LooksHere(np.zeros(0), np.zeros(0), np.zeros(2))


def shows_enough(pairs: Floats, least: int) -> bool:
    """Whether pairs of answers concern enough labels: none, or so many, and none or so many that differ."""
    both, differ = pairs
    return bool((both == 0 and differ == 0) or (both >= least and (differ == 0 or differ >= least)))


def told_looks(folder: Path, strata: Strata, least: int) -> Sums:
    """What a site tells of its looks that has told nothing before."""
    return LooksHere.of(folder, strata).told(least)


def parts_of(looked: Floats, found: Floats, least: int, earlier: Sequence[LooksHere] = ()) -> list[slice]:
    """Which neighbouring strata are told together, from the most suspicious down; none where there are too few looks.

    Of each part at least `least` labels were looked at, none or as many were found wrong, none or as many right. The
    same holds for what has come since each of the `earlier` answers, whose difference to this one everybody can see.
    """
    if least < 2:
        return [slice(place, place + 1) for place in np.flatnonzero(looked).tolist()]

    def shows(looked: float, found: float) -> bool:
        return looked >= least and all(many == 0 or many >= least for many in (found, looked - found))

    def enough(part: slice) -> bool:
        here = looked[part].sum(), found[part].sum()
        since = [(here[0] - one.looked[part].sum(), here[1] - one.found[part].sum()) for one in earlier]
        return bool(shows(*here) and all(more == (0, 0) or shows(*more) for more in since))

    parts, start = [], 0
    for place in range(len(looked)):
        if enough(slice(start, place + 1)):
            parts.append(slice(start, place + 1))
            start = place + 1
    while looked[start:].any() and parts:  # what is left joins the parts above it
        start = parts.pop().start
        if enough(slice(start, len(looked))):
            parts.append(slice(start, len(looked)))
            break
    return parts


def update_from(
    folder: Path, strata: Strata, p_wrong: Floats, values: dict[str, Any], threshold: float
) -> dict[str, Any]:
    """Write the figures of all sites into the folder of one; returns its counts."""
    site = JudgedSite.of(folder)
    rows = new_rows(site, strata.places(site.score), p_wrong, values["settled"], threshold, None)
    return write_updated(site, rows, values, threshold)


def called_now(counts: dict[str, Any], least: int) -> Payload:
    """How many labels of a site are called after looks; 0 where they are fewer than the least count."""
    many = float(counts["to_review"])
    return {"called": torch.tensor([many if many >= least else 0.0], dtype=torch.float64)}


def checked_figures(facts: dict[str, Any], payload: Payload, strata: Strata) -> tuple[dict[str, Any], Floats, float]:
    """What the coordinator tells of all looks: figures, p_wrong per stratum, threshold; an error if it is not that."""
    place = "what the coordinator tells of the looks"
    demand(place, facts.get("values"), FIGURES)
    demand(place, facts, {"threshold": float})
    p_wrong = payload.get("p_wrong")
    if p_wrong is None or p_wrong.dtype != torch.float64 or p_wrong.shape != (len(strata),):
        raise DataError(f"{place} does not fit the strata of this audit.")
    found = p_wrong.numpy()
    if not ((found >= 0) & (found <= 1)).all():
        raise DataError(f"{place} has a p_wrong that is not from 0 to 1.")
    told = facts["values"]
    values = {key: value[:LONGEST] if isinstance(value, str) else value for key, value in told.items()}
    return values, np.asarray(found), float(facts["threshold"])


def strata_from(told: dict[str, Any]) -> Strata:
    """Strata from a file."""
    return Strata(np.array(told["last"], np.int64), np.array(told["sizes"], np.int64))


# --- at the coordinator ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SiteLooks:
    """The looks of one site, as it told them."""

    looked: Floats  # per stratum, where the site told what was found
    parts: JoinedLooks
    both: int
    differ: int

    @classmethod
    def of(cls, sums: Sums) -> SiteLooks:
        """From an answer that `problem_with_looks` has let pass."""
        part = sums["part"]
        numbers = np.unique(part[part >= 0])
        inside = (part[:, None] == numbers[None]) * sums["looked"][:, None]
        totals = inside.sum(0)
        found = np.array([sums["found"][part == number].sum() for number in numbers])
        both, differ = (int(count) for count in sums["pairs"])
        parts = JoinedLooks(totals, found, inside / np.maximum(totals, TINY))
        return cls(inside.sum(1), parts, both, differ)

    @property
    def spread(self) -> Floats:
        """What was found, shared out over the strata of a part in proportion to the looks there."""
        return np.asarray(self.parts.mixing @ self.parts.found)


def problem_with_looks(sums: Sums, strata: int) -> str | None:
    """Why these cannot be the looks of a site; None if they can."""
    if {key: value.shape for key, value in sums.items()} != {
        **dict.fromkeys(("looked", "found", "part"), (strata,)),
        "pairs": (2,),
    }:
        return "it did not tell its looks in the form that was asked for"
    counts = np.concatenate([sums["looked"], sums["found"], sums["pairs"]])
    part = sums["part"]
    if not np.isfinite(counts).all() or (counts < 0).any() or not np.isin(part, np.arange(-1, strata)).all():
        return "what it told of its looks are no counts"
    told = SiteLooks.of(sums)
    if (told.parts.found > told.parts.looked + TINY).any() or told.differ > told.both:
        return "it says that more labels were found wrong than were looked at"
    return None


@dataclass(frozen=True, eq=False)
class FoundOverSites:
    """What the looks of all sites say."""

    tally: LookCounts
    together: Estimate
    by_site: list[Estimate | None]  # None: there are too few looks at this site

    def values(self, place: int | None, *, threshold: float, cost: float) -> dict[str, Any]:
        """The figures for one site, or of all together."""
        own = None if place is None else self.by_site[place]
        several, tally = len(self.by_site) > 1, self.tally
        if own is not None and place is not None and several:
            tally = LookCounts(tally.looked[[place]], tally.found[[place]], tally.both, tally.differ)
        whose = "all sites" if several and own is None else "this site"
        estimate = self.together if own is None else own
        options: dict[str, Any] = {"threshold": threshold, "cost": cost, "planned": tally.total, "whose": whose}
        values = figures(estimate, tally, **options)
        return values if place is None else values | {"looked_here": int(self.tally.looked[place].sum())}


def found_over_sites(strata: Strata, sizes: Floats, sites: list[SiteLooks], seed: int) -> FoundOverSites:
    """The figures that follow; refused where too few looks were told."""
    looked, found = np.stack([one.looked for one in sites]), np.stack([one.spread for one in sites])
    tally = LookCounts(looked, found, sum(one.both for one in sites), sum(one.differ for one in sites))
    if tally.total < ENOUGH:
        raise UsageError(
            f"the sites told what people found at {tally.total} of the labels drawn by lot; needed: {ENOUGH} or more. "
            "Let people look first (fedwinnow review sites/SITE --anchor 30). A site does not tell what concerns fewer "
            "labels than its least count: with more looks at each site, more can be told."
        )
    parts = estimate_sites(
        strata,
        np.asarray(sizes, np.int64),
        looked,
        found,
        error=tally.error,
        seed=seed,
        joined=[one.parts for one in sites],
    )
    enough = looked.sum(axis=1) >= ENOUGH_AT_SITE
    return FoundOverSites(
        tally, summed(parts), [parts[number] if own else None for number, own in enumerate(enough.tolist())]
    )
