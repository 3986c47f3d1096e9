"""`fedwinnow audit --update`: the figures of an audit again, from what people said of labels drawn by lot.

The audit as it was is kept (audit-before-looks.csv, `before_looks` in site.json), and every update starts from it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedwinnow.auditing.audit_folder import CANNOT_TELL, KEEP, REVIEW, TOO_FEW, read_audit
from fedwinnow.auditing.audit_report import write_index, write_report
from fedwinnow.auditing.look_figures import DEFAULT_COST, FEWEST_CALLS, NOT_WORTH, OPEN, figures
from fedwinnow.auditing.looks import (
    ALL_SITES,
    BEFORE,
    ENOUGH,
    ENOUGH_AT_SITE,
    JudgedSite,
    LookCounts,
    Survey,
    findings_of,
    looks_at,
    tally_of,
)
from fedwinnow.auditing.spreadsheet_files import read_table, table_text
from fedwinnow.errors import UsageError, speaks_python
from fedwinnow.files import json_of, replacing, write_text
from fedwinnow.mathematics.strata import first_of_all, histogram
from fedwinnow.randomness import Floats, Integers

KEPT = ("counts", "claims", "p_wrong", "assumptions", "threshold")  # of site.json and audit.json, as they were
ASSUMPTIONS = (
    "The labels that were looked at were drawn by lot, and the reviewer saw neither score nor suggestion.",
    "The share of wrong labels falls from the top of the order to its end, or stays the same.",
    "At least 5 of 100 answers of a reviewer are wrong, in either direction.",
)
OWN_WORDS = (REVIEW, KEEP, TOO_FEW, CANNOT_TELL, "")  # decisions that the audit writes; others are a person's
Row = dict[str, str]


@dataclass(frozen=True, eq=False)
class Updated:
    """What an update found."""

    folder: Path
    looks: dict[str, Any]  # the figures of all labels together
    sites: list[dict[str, Any]]  # per site: counts, and its folder


@speaks_python
def update_audit(
    folder: str | Path, *, threshold: float | None = None, look_cost: float = DEFAULT_COST, budget: int | None = None
) -> Updated:
    """Turn what people said of labels drawn by lot into figures about all labels, and write them into the audit folder.

    `folder` is that of a site or of a whole audit; the labels are drawn by `fedwinnow review --anchor 30`.
    `look_cost` is what a look costs if a corrected label is worth 1, and decides how many further looks are worth it.
    `budget` marks so many labels to look at.
    """
    if threshold is not None and not 0 < threshold <= 1:
        raise UsageError(f"--threshold {threshold} was given; allowed: above 0 and at most 1.")
    if not 0 < look_cost < 1:
        raise UsageError(f"--look-cost {look_cost} was given; allowed: above 0 and below 1.")
    if budget is not None and budget < 1:
        raise UsageError(f"--budget {budget} was given; allowed: 1 or more labels.")
    survey = Survey(Path(folder))
    tally = tally_of(survey)
    refuse_few(survey, tally)
    limit = float(survey.sites[0].facts.get("threshold", 0.5)) if threshold is None else threshold
    findings = findings_of(survey, tally)
    planned = sum(len(looks_at(site)) for site in survey.sites)
    several = len(survey.sites) > 1
    options: dict[str, Any] = {"threshold": limit, "cost": look_cost, "planned": planned}
    together = figures(findings.together, tally, whose="all sites" if several else "this site", **options)
    marks = None if budget is None else marked(survey, budget)
    lines = []
    for number, site in enumerate(survey.sites):
        values = together
        if several and (own := findings.by_site[number]) is not None:
            values = figures(own, tally_at(tally, number), whose="this site", **options)
        values = values | {"looked_here": int(tally.looked[number].sum())}
        p_wrong, mark = findings.of(number).p_wrong, None if marks is None else marks[number]
        rows = new_rows(site, survey.places[number], p_wrong, values["settled"], limit, mark)
        lines.append({**write_updated(site, rows, values, limit), "folder": site.folder.name})
    if survey.whole:
        write_updated_coordinator(survey.folder, lines, together)
    return Updated(survey.folder, together, lines)


def refuse_few(survey: Survey, tally: LookCounts) -> None:
    """Refuse where too few labels were looked at."""
    told = f"{survey.folder}: people have looked at {tally.total} of the labels drawn by lot"
    if tally.total < ENOUGH:
        raise UsageError(f"{told}; needed: {ENOUGH} or more. Look first: fedwinnow review {survey.folder} --anchor 30")
    drawn_together = any(look.drawn_from == ALL_SITES for site in survey.sites for look in looks_at(site).values())
    if not survey.whole and drawn_together and tally.total < ENOUGH_AT_SITE:
        raise UsageError(
            f"{told}, which were drawn from all sites together; needed for one site: {ENOUGH_AT_SITE}. Update the "
            f"folder of the whole audit, or look at more: fedwinnow review {survey.folder} --anchor 30"
        )


def tally_at(tally: LookCounts, number: int) -> LookCounts:
    """The looks at one site; how far reviewers differ is taken from all."""
    return LookCounts(tally.looked[[number]], tally.found[[number]], tally.both, tally.differ)


# --- the lines of audit.csv ------------------------------------------------------------------------------------------


def new_rows(
    site: JudgedSite,
    stratum: Integers,
    expected: Floats,
    settled: str | None,
    threshold: float,
    marks: set[str] | None,
) -> list[Row]:
    """The lines of a site with new p_wrong and decision; words that a person wrote into the file stay.

    `stratum` has the place of each label, `expected` the share of wrong labels in each stratum.
    """
    written = {row["id"]: row["decision"] for row in read_audit(site.folder)}
    rows = []
    for original in read_audit(site.folder, BEFORE if (site.folder / BEFORE).exists() else "audit.csv"):
        row = dict(original)
        place = site.by_id.get(row["id"])
        if place is not None:
            told = original["p_wrong"] != ""
            if told or settled != OPEN:
                p_wrong = f"{expected[stratum[place]]:.6f}"
                called = float(p_wrong) >= threshold
                other = original.get("other") or original["suggested"]
                row |= {"p_wrong": p_wrong, "decision": REVIEW if called else KEEP}
                row["suggested"] = other if called else original["given"]
            else:
                row |= {"p_wrong": "", "decision": CANNOT_TELL}
        if written.get(row["id"], "") not in OWN_WORDS:
            row["decision"] = written[row["id"]]
        if marks is not None:
            row["look"] = "yes" if row["id"] in marks else ""
        rows.append(row)
    return rows


def marked(survey: Survey, budget: int) -> list[set[str]]:
    """Per site the ids of the first so many labels over all sites."""
    chosen = first_of_all([histogram(site.score) for site in survey.sites], budget)
    return [{site.rows[place]["id"] for place in range(many)} for site, many in zip(survey.sites, chosen, strict=True)]


# --- files -----------------------------------------------------------------------------------------------------------


def write_updated(site: JudgedSite, rows: list[Row], values: dict[str, Any], threshold: float) -> dict[str, Any]:
    """Write audit.csv, site.json and report.html of a site; returns its counts."""
    folder = site.folder
    if not (folder / BEFORE).exists():
        with replacing(folder / BEFORE) as stream:
            stream.write((folder / "audit.csv").read_bytes())
    header = list(rows[0])
    content = json_of(folder / "site.json")
    before = content.setdefault("before_looks", {name: content[name] for name in KEPT if name in content})
    counts = new_counts(before["counts"], rows, values)
    content |= after_looks(before, counts, values, threshold)
    write_text(folder / "audit.csv", table_text(header, ([row[name] for name in header] for row in rows)))
    write_text(folder / "site.json", json.dumps(content, ensure_ascii=False, allow_nan=False) + "\n")
    write_report(folder)
    return counts


def after_looks(
    before: dict[str, Any], counts: dict[str, Any], values: dict[str, Any], threshold: float
) -> dict[str, Any]:
    """The parts of site.json and audit.json that looks change."""
    said = {name: counts[name] for name in ("said", "reason", "precision_at_least")}
    return {
        "counts": counts,
        "claims": before.get("claims", {}) | said | {"calls": counts["to_review"], "recall": None},
        "threshold": threshold,
        "p_wrong": (
            f"p_wrong is the share of wrong labels that is expected among labels of this rank, from {values['looked']} "
            f"looks of a person at labels of {values['of']} drawn by lot."
        ),
        "assumptions": list(ASSUMPTIONS),
        "looks": values,
    }


def new_counts(before: dict[str, Any], rows: list[Row], values: dict[str, Any]) -> dict[str, Any]:
    """The counts of a site after looks."""
    called = sum(row["decision"] == REVIEW for row in rows)
    judged = sum(row["decision"] != TOO_FEW for row in rows)
    open_still = any(row["decision"] == CANNOT_TELL for row in rows)
    own = values["of"] == "this site"
    said = CANNOT_TELL if open_still else "calls" if called else NOT_WORTH
    reason = values["said"] + (f" {values['warning']}" if values["warning"] else "")
    if not own:
        reason += (
            f" This holds for all sites together: {values['looked_here']} of these looks were here, too few for "
            "figures of this site alone."
        )
    # Looks at all sites say nothing about the calls of this one alone.
    precision = values["calls"]["low"] if own and values["calls"] is not None and called >= FEWEST_CALLS else None
    return before | {
        "to_review": called,
        "said": said,
        "reason": reason,
        "wrong_at_least": round(values["all"]["low"] * judged) if own else None,
        "wrong_at_most": round(values["all"]["high"] * judged) if own else None,
        "precision_at_least": precision,
    }


def write_updated_coordinator(folder: Path, lines: list[dict[str, Any]], together: dict[str, Any]) -> None:
    """Write audit.json and sites.csv again."""
    path = folder / "sites.csv"
    rows = read_table(path, ("site", "folder"))
    known = {line["folder"]: line for line in lines}
    for row in rows:
        for name, value in known.get(row["folder"], {}).items():
            if name in row:
                row[name] = "" if value is None else str(value)
    data = json_of(folder / lines[0]["folder"] / "site.json")["data"]["name"]
    write_index(folder, data, [known[row["folder"]] for row in rows if row["folder"] in known])
    if (folder / "audit.json").exists():
        content = json_of(folder / "audit.json")
        before = content.setdefault("before_looks", {name: content[name] for name in KEPT if name in content})
        called = sum(line["to_review"] for line in lines)
        content["claims"] = before.get("claims", {}) | {
            "said": "calls" if called else CANNOT_TELL if together["settled"] == OPEN else NOT_WORTH,
            "reason": together["said"],
            "calls": called,
            "precision_at_least": together["calls"]["low"] if together["calls"] is not None else None,
            "recall": None,
        }
        content["looks"] = together
        content["assumptions"] = list(ASSUMPTIONS)
        write_text(folder / "audit.json", json.dumps(content, indent=1, allow_nan=False) + "\n")
    write_text(path, table_text(list(rows[0]), ([row[name] for name in rows[0]] for row in rows)))
