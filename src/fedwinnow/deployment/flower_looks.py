"""`serve --audit --update`: sum the looks of people at all sites, and tell each site what follows for its labels."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.serverapp import Grid

from fedwinnow.auditing.audit import SITE_COLUMNS
from fedwinnow.auditing.audit_report import write_index
from fedwinnow.auditing.look_figures import NOT_WORTH, OPEN
from fedwinnow.auditing.looks_over_sites import (
    STRATA,
    FoundOverSites,
    SiteLooks,
    found_over_sites,
    problem_with_looks,
    strata_from,
)
from fedwinnow.auditing.spreadsheet_files import read_table, table_text
from fedwinnow.auditing.statements import CALLS, CANNOT
from fedwinnow.auditing.update import ASSUMPTIONS, KEPT, Updated
from fedwinnow.auditing.wire_values import sums_from_payload
from fedwinnow.deployment.flower_audit import AGREEMENT
from fedwinnow.deployment.flower_backend import Flower
from fedwinnow.deployment.flower_run import AuditStep, Terms, gather, no_samples
from fedwinnow.deployment.ledger_heads import Heads
from fedwinnow.errors import UsageError
from fedwinnow.experiment.play import Execution
from fedwinnow.experiment.run_folder import RunFolder
from fedwinnow.files import Maybe, json_of, write_text

FORM = {"hello": dict, "run": dict, "sites": [str]}
AUDIT_FORM = {"strata": STRATA, "seed": int, "threshold": float}
LINE_FORM = {"site": str, "samples": Maybe(int)}


@dataclass(frozen=True)
class LooksAsked:
    """What figures are wanted."""

    threshold: float | None = None  # none: that of the audit
    cost: float = 0.2  # of a look, if a corrected label is worth 1


def coordinate_looks(grid: Grid, folder: Path, execution: Execution, terms: Terms, asked: LooksAsked) -> Updated:
    """Sum looks with the sites of a grid, and write the figures into the coordinator's folder of the audit."""
    place = RunFolder(folder)
    if not (folder / AGREEMENT).exists():
        raise UsageError(
            f"--update {folder}: not the folder of an audit over a network (it has no {AGREEMENT}). For an audit on "
            f"one machine: fedwinnow audit --update {folder}"
        )
    with place.locked():
        agreed, audit = json_of(folder / AGREEMENT, FORM), json_of(folder / "audit.json", AUDIT_FORM)
        strata, names, run = strata_from(audit["strata"]), tuple(agreed["sites"]), agreed["run"]

        def unfit(facts: dict[str, Any]) -> str | None:
            if run["scene"] is None:
                return no_samples(facts)
            return None if facts.get("scene") == run["scene"] and "clients" in facts else "it has another scene"

        roster = gather(grid, agreed["hello"], unfit, terms.under(execution))
        roster.begin(names)
        sites = Flower(None, roster, run, names, terms.timeout, Heads(folder, terms.say))
        terms.step(AuditStep("looks"))
        looks = asked_looks(sites, names, len(strata), terms)
        found = found_over_sites(
            strata, sizes_of(folder, names, list(looks), strata), list(looks.values()), audit["seed"]
        )
        threshold = float(audit["threshold"]) if asked.threshold is None else asked.threshold
        values = {site: found.values(number, threshold=threshold, cost=asked.cost) for number, site in enumerate(looks)}
        together = found.values(None, threshold=threshold, cost=asked.cost)
        called = tell(sites, names, values, p_wrong_of(found, list(looks)), threshold, terms)
        terms.step(AuditStep("over"))
        lines = written(folder, names, values, called, together)
        sites.end(0, {site: {"reason": "it did not tell its looks"} for site in range(len(names))})
    return Updated(folder, together, lines)


def asked_looks(sites: Flower, names: tuple[str, ...], strata: int, terms: Terms) -> dict[int, SiteLooks]:
    """The looks that the sites tell; one that tells none, or no counts, is left out and named."""
    contents = {site: (sites.facts("looks", site), dict[str, torch.Tensor]()) for site in range(len(names))}
    found = {}
    for site, answer in sorted(sites.asked(contents, 0).items()):
        sums = {} if answer.error else sums_from_payload(answer.reply)
        problem = answer.error or problem_with_looks(sums, strata)
        if problem is not None:
            terms.say(f"the looks at {names[site]} are not in the sum: {problem}")
            continue
        found[site] = SiteLooks.of(sums)
        drawn, told = int(sums["looked"].sum()), int(found[site].looked.sum())
        hidden = "" if drawn == told else f"; too few to tell what was found at {drawn - told} of them"
        terms.say(f"{names[site]}: people looked at {drawn} labels{hidden}")
    if not found:
        raise UsageError("no site told any looks. Let people look first: fedwinnow review sites/SITE --anchor 30")
    return found


def sizes_of(folder: Path, names: tuple[str, ...], sites: list[int], strata: Any) -> np.ndarray[Any, Any]:
    """The labels of each site per stratum, as the audit has counted them."""
    told = json_of(folder / AGREEMENT, {"sizes": {"*": [int]}})["sizes"]
    return np.array([told.get(names[site], [0] * len(strata)) for site in sites], np.int64)


def p_wrong_of(found: FoundOverSites, sites: list[int]) -> dict[int, np.ndarray[Any, Any]]:
    """Per site the expected share of wrong labels in each stratum: its own where it has looks enough."""
    estimates = [own or found.together for own in found.by_site]
    return {site: estimate.p_wrong for site, estimate in zip(sites, estimates, strict=True)}


def tell(
    sites: Flower,
    names: tuple[str, ...],
    values: dict[int, dict[str, Any]],
    p_wrong: dict[int, np.ndarray[Any, Any]],
    threshold: float,
    terms: Terms,
) -> dict[int, int | None]:
    """Tell every site the figures; returns how many labels are called there now, None where a site did not answer."""
    contents = {
        site: (
            sites.facts("looked", site) | {"values": values[site], "threshold": threshold},
            {"p_wrong": torch.from_numpy(p_wrong[site].copy())},
        )
        for site in values
    }
    called: dict[int, int | None] = dict.fromkeys(values)
    for site, answer in sites.asked(contents, 0).items():
        number = answer.reply.get("called")
        if answer.error is not None or number is None or number.shape != (1,) or not 0 <= float(number) < 1e12:
            terms.say(f"{names[site]} did not take the figures: {answer.error or 'its answer is no count'}")
        else:
            called[site] = int(number)
    return called


def written(
    folder: Path,
    names: tuple[str, ...],
    values: dict[int, dict[str, Any]],
    called: dict[int, int | None],
    together: dict[str, Any],
) -> list[dict[str, Any]]:
    """Write the figures into audit.json, sites.csv and index.html; returns the lines of sites.csv."""
    path, by_name = folder / "sites.csv", {names[site]: site for site in values}
    rows = read_table(path, SITE_COLUMNS)
    for row in rows:
        site = by_name.get(row["site"])
        if site is None or called[site] is None:
            continue
        one, many = values[site], called[site] or 0
        own, judged = one["of"] == "this site", int(row["judged"] or 0)
        said = CANNOT if one["settled"] == OPEN else CALLS if many else NOT_WORTH
        row |= {"to_review": str(many), "said": said, "reason": one["said"], "precision_at_least": ""}
        row["wrong_at_least"] = str(round(one["all"]["low"] * judged)) if own else ""
        row["wrong_at_most"] = str(round(one["all"]["high"] * judged)) if own else ""
    content = json_of(folder / "audit.json")
    before = content.setdefault("before_looks", {name: content[name] for name in KEPT if name in content})
    all_called = sum(many or 0 for many in called.values())
    content["claims"] = before.get("claims", {}) | {
        "said": CALLS if all_called else CANNOT if together["settled"] == OPEN else NOT_WORTH,
        "reason": together["said"],
        "calls": all_called,
        "precision_at_least": together["calls"]["low"] if together["calls"] is not None else None,
        "recall": None,
    }
    content |= {"looks": together, "assumptions": list(ASSUMPTIONS)}
    write_text(folder / "audit.json", json.dumps(content, indent=1, allow_nan=False) + "\n")
    write_text(path, table_text(list(SITE_COLUMNS), ([row[name] for name in SITE_COLUMNS] for row in rows)))
    lines = [as_line(row) for row in rows]
    write_index(folder, content["data"]["name"], lines)
    return [line for line in lines if line["site"] in by_name]


def as_line(row: dict[str, str]) -> dict[str, Any]:
    """A line of sites.csv with its numbers as numbers; there are no folders of sites here."""
    whole = ("samples", "judged", "to_review", "wrong_at_least", "wrong_at_most")
    numbers = {name: int(row[name]) if row[name] else None for name in whole}
    return {**row, **numbers, "folder": ""}
