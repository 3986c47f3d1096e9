"""Looks: labels drawn by lot that a person looks at, so that figures about all labels can follow from a few.

`looks.csv` in a site's folder names the labels before anybody sees them. What people decide about these, and about no
others, counts: labels that somebody chose to look at are not like the rest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedwinnow.auditing.audit_folder import TOO_FEW, lot_of, read_audit, read_site, site_folders
from fedwinnow.auditing.decisions import SKIP, Decided, alone, read_decisions
from fedwinnow.auditing.spreadsheet_files import read_table, table_text
from fedwinnow.errors import DataError, UsageError
from fedwinnow.files import write_text
from fedwinnow.mathematics.look_curves import Curves, Estimate, error_of_reviewers, estimate, estimate_sites, summed
from fedwinnow.mathematics.strata import Strata, first_looks, histogram, next_looks
from fedwinnow.randomness import Floats, Integers

HEADER = ("id", "stratum", "step", "drawn_from")
ONE_SITE, ALL_SITES = "site", "audit"
BEFORE = "audit-before-looks.csv"  # audit.csv as the audit wrote it
ENOUGH_AT_SITE = 20  # looks at one of several sites; with fewer, the figures of all sites together are taken
ENOUGH = 10  # looks; with fewer, nothing is said


@dataclass(frozen=True)
class Look:
    """One label to look at."""

    id: str
    stratum: int  # 1 is the most suspicious
    step: int  # looks of a later step are chosen by what the earlier ones found
    drawn_from: str  # from the labels of this site alone, or from those of the whole audit


def looks_at(site: JudgedSite) -> dict[str, Look]:
    """The looks at a site; refuses one at a label that the audit does not have."""
    looks = read_looks(site.folder)
    if strange := next((name for name in looks if name not in site.by_id), None):
        raise DataError(f"{site.folder / 'looks.csv'}: '{strange}' is not in audit.csv. Restore the file.")
    return looks


def read_looks(folder: Path) -> dict[str, Look]:
    """The looks at a site, by id; none before the first draw."""
    path = folder / "looks.csv"
    if not path.exists():
        return {}
    found = {}
    for number, row in enumerate(read_table(path, HEADER), start=1):
        if not (row["stratum"] + row["step"]).isdecimal() or row["drawn_from"] not in (ONE_SITE, ALL_SITES):
            raise DataError(
                f"{path}, row {number} (line {number + 1}): not a look. Needed: {', '.join(HEADER)}, as "
                "`fedwinnow review --anchor` writes them."
            )
        found[row["id"]] = Look(row["id"], int(row["stratum"]), int(row["step"]), row["drawn_from"])
    return found


def save_looks(folder: Path, looks: dict[str, Look]) -> None:
    """Write looks.csv."""
    rows = ([getattr(look, name) for name in HEADER] for look in looks.values())
    write_text(folder / "looks.csv", table_text(HEADER, rows))


@dataclass(frozen=True, eq=False)
class JudgedSite:
    """A site's folder, with the labels that were judged in the order of their scores."""

    folder: Path
    facts: dict[str, Any]
    rows: list[dict[str, str]]  # as the audit wrote them
    score: Floats

    @classmethod
    def of(cls, folder: Path) -> JudgedSite:
        """Read it; refuses an audit without scores."""
        facts = read_site(folder)
        name = BEFORE if (folder / BEFORE).exists() else "audit.csv"
        rows = [row for row in read_audit(folder, name) if row["decision"] != TOO_FEW]
        score = np.array([score_of(folder / name, row) for row in rows])
        order = np.argsort(-score, kind="stable")
        return cls(folder, facts, [rows[place] for place in order.tolist()], score[order])

    @property
    def name(self) -> str:
        """The site."""
        return str(self.facts["site"])

    @cached_property
    def by_id(self) -> dict[str, int]:
        """id -> place."""
        return {row["id"]: place for place, row in enumerate(self.rows)}

    def order_of(self, name: str) -> int:
        """Where a label stands among the looks of a step.

        Not its lot: the lowest lots of a large stratum are lower than those of a small one, which would tell the depth.
        """
        return lot_of(self.facts.get("seed", 0), self.name, name, "order of looks")

    @cached_property
    def lots(self) -> list[int]:
        """A number by lot for each label; those with the lowest ones of their stratum are looked at."""
        seed = self.facts.get("seed", 0)
        return [lot_of(seed, self.name, row["id"]) for row in self.rows]


def score_of(path: Path, row: dict[str, str]) -> float:
    """The score of a label."""
    try:
        score = float(row["score"])
    except KeyError:
        raise DataError(
            f"{path} has no column 'score': the audit was made by an earlier version, whose labels cannot be drawn "
            "by lot. Audit again."
        ) from None
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise DataError(f"{path}: the score of '{row['id']}' is '{row['score']}'; needed: a number. Restore the file.")
    return score


class Survey:
    """The labels of one site, or of all sites of an audit, in strata."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sites = [JudgedSite.of(place) for place in site_folders(folder)]
        self.whole = not (folder / "site.json").exists()
        counts = [histogram(site.score) for site in self.sites]
        if not sum(int(count.sum()) for count in counts):
            raise UsageError(
                f"{folder}: no label was judged there, because there are too few samples. Nothing to draw."
            )
        self.strata = Strata.of(np.sum(counts, axis=0))
        self.sizes = np.stack([self.strata.sizes_of(count) for count in counts])
        self.places = [self.strata.places(site.score) for site in self.sites]

    @property
    def drawn_from(self) -> str:
        """What new looks are drawn from."""
        return ALL_SITES if self.whole else ONE_SITE

    def opinions(self) -> list[Floats]:
        """The mean p_wrong of each stratum as the audit found it without looks, if it said one about every label."""
        told = [[row["p_wrong"] for row in site.rows] for site in self.sites]
        if any(word == "" for words in told for word in words):
            return []
        values = np.array([float(word) for words in told for word in words])
        place = np.concatenate(self.places)
        return [np.bincount(place, values, len(self.strata)) / self.strata.sizes]

    def centres(self) -> Floats:
        """How much likelier labels of each site are wrong than those of all, by the audit without looks; else 0."""
        facts = [site.facts.get("before_looks", site.facts) for site in self.sites]
        wrong = [one["counts"].get("wrong_at_least") for one in facts]
        if any(value is None for value in wrong):
            return np.zeros(len(self.sites))
        labels = self.sizes.sum(axis=1)
        rates = (np.array(wrong, np.float64) + 0.5) / (labels + 1)
        return np.asarray(np.log(rates / np.average(rates, weights=np.maximum(labels, 1))))


@dataclass(frozen=True, eq=False)
class LookCounts:
    """What a site would send: how many labels were looked at, and how many found wrong, per site and stratum."""

    looked: Floats
    found: Floats
    both: int  # pairs of answers about one label by two people
    differ: int  # pairs in which one says wrong and the other right

    @property
    def total(self) -> int:
        """How many labels were looked at."""
        return int(self.looked.sum())

    @property
    def error(self) -> float:
        """How many answers are taken to be wrong."""
        return error_of_reviewers(self.both, self.differ)


def answers_by_sample(decided: Decided) -> dict[str, list[str]]:
    """sample -> the labels that people chose for it; those who could not say are left out."""
    found: dict[str, list[str]] = {}
    for (sample, _), one in decided.items():
        if one.decision != SKIP:
            found.setdefault(sample, []).append(one.label)
    return found


def tally_of(survey: Survey) -> LookCounts:
    """Count what people decided about the labels that were drawn.

    A label that several people saw is one look; where they differ it counts partly each way.
    """
    strata = len(survey.strata)
    counts = [pairs_at(site, places, strata) for site, places in zip(survey.sites, survey.places, strict=True)]
    looked, found, both, differ = zip(*counts, strict=True)
    return LookCounts(np.stack(looked), np.stack(found), sum(both), sum(differ))


def pairs_at(site: JudgedSite, places: Integers, strata: int) -> tuple[Floats, Floats, int, int]:
    """Of one site, per stratum: labels looked at and found wrong; also pairs of answers, and how many of them differ.

    `places` has the stratum of each label.
    """
    looked, found, both, differ = np.zeros(strata), np.zeros(strata), 0, 0
    answers = answers_by_sample(read_decisions(site.folder))
    for name in looks_at(site):
        given = site.rows[site.by_id[name]]["given"]
        if said := [label != given for label in answers.get(name, [])]:
            stratum = places[site.by_id[name]]
            looked[stratum] += 1
            found[stratum] += sum(said) / len(said)
            both += len(said) * (len(said) - 1) // 2
            differ += sum(said) * (len(said) - sum(said))
    return looked, found, both, differ


# --- which labels ----------------------------------------------------------------------------------------------------


def draw_looks(survey: Survey, total: int) -> int:
    """Draw labels until there are `total`, as far as the answers so far allow; returns how many are new.

    Half of them come first, equally many per stratum. The rest follow when these are decided, where it is open
    whether half of the labels are wrong.
    """
    with alone(survey.sites[0].folder):
        drawn = [looks_at(site) for site in survey.sites]
        planned = sum(map(len, drawn))
        if planned >= total or (planned and not all_decided(survey, drawn)):
            return 0
        taken = taken_by_stratum(survey, drawn)
        if planned:
            step = 1 + max(look.step for looks in drawn for look in looks.values())
            wanted = next_looks(survey.strata.sizes, taken, likely_now(survey), total - planned)
        else:
            step, wanted = 1, first_looks(survey.strata.sizes, (total + 1) // 2)
        new = add_looks(survey, drawn, wanted, step)
        for site, looks in zip(survey.sites, drawn, strict=True):
            if any(look.step == step for look in looks.values()):
                save_looks(site.folder, looks)
        return new


def all_decided(survey: Survey, drawn: list[dict[str, Look]]) -> bool:
    """Whether somebody has decided about every label that was drawn, if only that it cannot be said."""
    return all(
        set(looks) <= {sample for sample, _ in read_decisions(site.folder)}
        for site, looks in zip(survey.sites, drawn, strict=True)
    )


def taken_by_stratum(survey: Survey, drawn: list[dict[str, Look]]) -> Integers:
    """How many labels of each stratum are drawn already."""
    taken = np.zeros(len(survey.strata), np.int64)
    for site, places, looks in zip(survey.sites, survey.places, drawn, strict=True):
        for name in looks:
            taken[places[site.by_id[name]]] += 1
    return taken


def likely_now(survey: Survey) -> Floats:
    """The chance that at least half of each stratum is wrong, after the looks so far."""
    tally = tally_of(survey)
    curves = Curves.over(survey.strata).with_opinions(survey.opinions())
    return curves.after(tally.looked.sum(axis=0), tally.found.sum(axis=0), tally.error).likely()


def add_looks(survey: Survey, drawn: list[dict[str, Look]], wanted: Integers, step: int) -> int:
    """Add as many labels of each stratum as are wanted: those with the lowest lots, at any site."""
    waiting: list[list[tuple[int, int, str]]] = [[] for _ in range(len(survey.strata))]
    for number, (site, places) in enumerate(zip(survey.sites, survey.places, strict=True)):
        for place, (stratum, lot) in enumerate(zip(places.tolist(), site.lots, strict=True)):
            name = site.rows[place]["id"]
            if wanted[stratum] and name not in drawn[number]:
                waiting[stratum].append((lot, number, name))
    chosen = [
        (lot, number, name, stratum)
        for stratum, many in enumerate(wanted.tolist())
        for lot, number, name in sorted(waiting[stratum])[:many]
    ]
    for _, number, name, stratum in chosen:
        drawn[number][name] = Look(name, stratum + 1, step, survey.drawn_from)
    return len(chosen)


# --- what follows from them ------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Findings:
    """What the looks say about all labels."""

    survey: Survey
    tally: LookCounts
    together: Estimate
    by_site: list[Estimate | None]  # None: there are too few looks at this site

    def of(self, number: int) -> Estimate:
        """What is taken for a site: its own figures, or those of all sites."""
        return self.by_site[number] or self.together


def findings_of(survey: Survey, tally: LookCounts | None = None) -> Findings:
    """The figures that follow from the looks so far."""
    tally = tally_of(survey) if tally is None else tally
    seed = int(survey.sites[0].facts.get("seed", 0))
    opinions, error = survey.opinions(), tally.error
    looked, found = tally.looked.sum(axis=0), tally.found.sum(axis=0)
    if len(survey.sites) == 1:
        alone_here = estimate(survey.strata, looked, found, opinions=opinions, error=error, seed=seed)
        return Findings(survey, tally, alone_here, [alone_here])
    enough = tally.looked.sum(axis=1) >= ENOUGH_AT_SITE
    apart = any(look.drawn_from == ONE_SITE for site in survey.sites for look in read_looks(site.folder).values())
    parts = (
        estimate_sites(
            survey.strata,
            survey.sizes,
            tally.looked,
            tally.found,
            opinions=opinions,
            centres=survey.centres(),
            error=error,
            seed=seed,
        )
        if apart or enough.any()
        else []
    )
    # Looks drawn at single sites are not spread like the labels; a shift per site makes up for that.
    together = (
        summed(parts) if apart else estimate(survey.strata, looked, found, opinions=opinions, error=error, seed=seed)
    )
    return Findings(
        survey, tally, together, [parts[number] if own else None for number, own in enumerate(enough.tolist())]
    )
