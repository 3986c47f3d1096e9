"""Which labels change: people's decisions, read from audit.csv and decisions.csv of every site."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedwinnow.auditing.audit_folder import CANNOT_TELL, KEEP, REVIEW, TOO_FEW, read_audit, read_site, site_folders
from fedwinnow.auditing.decisions import ACCEPT, check_reviewer, labels_by_sample, read_decisions
from fedwinnow.auditing.looks import read_looks
from fedwinnow.errors import DataError, UsageError, unknown


@dataclass(frozen=True)
class Change:
    """One label that becomes another."""

    given: str
    label: str
    source: str  # who decided: "review" (a person) or "audit" (accepted because of its p_wrong)


@dataclass(frozen=True)
class Expected:
    """What looks say about the labels that change although nobody has looked at them."""

    mean: float  # the share of them that is wrong, so that a change is right
    low: float
    high: float
    looked: int  # labels that a person looked at, drawn by lot
    found_wrong: int  # of these, wrong
    as_suggested: int  # of the wrong ones, those for which the person chose the suggested label


@dataclass(frozen=True)
class CorrectionPlan:
    """All changes to a data set, and counts of the labels that stay."""

    changes: dict[str, Change]  # by id
    source: str  # the spec of the data
    kept: int  # labels that people looked at and kept
    open: int  # labels to review without a decision
    disputed: list[str]  # ids on which reviewers differ; their labels stay
    expected: Expected | None = None  # None: nobody has looked at labels drawn by lot

    @property
    def unseen(self) -> int:
        """How many labels change although no person has looked at them."""
        return sum(change.source == "audit" for change in self.changes.values())


def plan_for(
    folder: Path, accept_above: float | None = None, reviewer: str | None = None, *, without_looks: bool = False
) -> CorrectionPlan:
    """The changes that follow from the decisions in a folder.

    `accept_above` adds labels that nobody has decided on. It needs looks, or `without_looks`.
    """
    if accept_above is not None and not 0 < accept_above <= 1:
        raise UsageError(f"--accept-above {accept_above} was given; allowed: above 0 and at most 1.")
    changes: dict[str, Change] = {}
    disputed: list[str] = []
    kept = undecided = 0
    sources = set()
    unseen: list[tuple[dict[str, Any], int]] = []  # per site: its facts, and how many labels change unseen
    if accept_above is not None and not without_looks:
        refuse_unlooked(folder)
    among = None if reviewer is None else [known_reviewer(folder, reviewer)]
    for site in site_folders(folder):
        facts, decided = read_site(site), read_decisions(site)
        sources.add(str(facts["data"]["source"]))
        before = sum(change.source == "audit" for change in changes.values())
        words, looked_at = labels_by_sample(decided, among), {sample for sample, _ in decided}
        for number, row in enumerate(read_audit(site), start=1):
            said = set(words.get(row["id"], {}).values()) or spreadsheet(site, number, row, facts["class_names"])
            if len(said) > 1:
                disputed.append(row["id"])
            elif said:
                label = checked(said.pop(), site, facts["class_names"])
                kept += label == row["given"]
                if label != row["given"]:
                    changes[row["id"]] = Change(row["given"], label, "review")
            elif row["decision"] != REVIEW:
                continue
            elif accept_above is None or row["id"] in looked_at or float(row["p_wrong"]) < accept_above:
                undecided += 1
            elif row["suggested"] == row["given"]:
                undecided += 1  # the models have no other label to offer
            else:
                changes[row["id"]] = Change(row["given"], row["suggested"], "audit")
        unseen.append((facts, sum(change.source == "audit" for change in changes.values()) - before))
    expected = None if accept_above is None else expected_of(folder, unseen, accept_above)
    return CorrectionPlan(changes, sources.pop() if len(sources) == 1 else "", kept, undecided, disputed, expected)


def refuse_unlooked(folder: Path) -> None:
    """Refuse to change labels unseen where nobody has looked at labels drawn by lot."""
    for site in site_folders(folder):
        if "looks" not in read_site(site):
            raise UsageError(
                f"--accept-above changes labels that nobody has seen, and nobody has looked at labels of {site} drawn "
                f"by lot, so how many of them are wrong is not known. Look at thirty first: fedwinnow review {folder} "
                f"--anchor 30, then fedwinnow audit --update {folder}. Or add --without-looks."
            )


def expected_of(folder: Path, unseen: list[tuple[dict[str, Any], int]], limit: float) -> Expected | None:
    """What the looks say about the labels that change unseen, at all sites together."""
    total = sum(many for _, many in unseen)
    if not total or any("looks" not in facts for facts, many in unseen if many):
        return None
    told = [(facts["looks"], many) for facts, many in unseen if many]
    parts = [(list_above(looks, limit), many) for looks, many in told]
    mean, low, high = (sum(part[name] * many for part, many in parts) / total for name in ("mean", "low", "high"))
    wrong, alike = suggestions_met(folder)
    return Expected(
        mean, low, high, sum(facts["looks"]["looked_here"] for facts, _ in unseen if "looks" in facts), wrong, alike
    )


def list_above(looks: dict[str, Any], limit: float) -> dict[str, float]:
    """The list of all labels from this p_wrong on; such lists end with a stratum."""
    labels = sum(stratum["labels"] for stratum in looks["strata"] if stratum["p_wrong"] >= limit)
    return next((one for one in looks["lists"] if one["labels"] == labels), {"mean": 0.0, "low": 0.0, "high": 1.0})


def suggestions_met(folder: Path) -> tuple[int, int]:
    """How many looks found a wrong label, and for how many of these the person chose what the audit suggests."""
    wrong = alike = 0
    for site in site_folders(folder):
        words = labels_by_sample(read_decisions(site))
        looks = read_looks(site)
        for row in read_audit(site):
            for label in words.get(row["id"], {}).values() if row["id"] in looks else ():
                wrong += label != row["given"]
                alike += label != row["given"] and label == (row.get("other") or row["suggested"])
    return wrong, alike


def known_reviewer(folder: Path, name: str) -> str:
    """The reviewer's name; refuses a name without a decision in any of the folders."""
    known = {who for site in site_folders(folder) for _, who in read_decisions(site)}
    if (wanted := check_reviewer(name)) not in known:
        raise unknown("reviewer", wanted, known)
    return wanted


def spreadsheet(site: Path, number: int, row: dict[str, str], names: list[str]) -> set[str]:
    """The label that a person wrote into audit.csv: accept, keep, or the name of a class."""
    word = row["decision"]
    if word in (REVIEW, TOO_FEW, CANNOT_TELL, KEEP, ""):
        return set()
    if word == ACCEPT:
        return {row["suggested"]}
    if word in names:
        return {word}
    raise DataError(
        f"{site / 'audit.csv'}, row {number} (line {number + 1}): the decision '{word}'; allowed: accept, keep, "
        f"review, or the name of a class ({', '.join(names[:10])})."
    )


def checked(label: str, site: Path, names: list[str]) -> str:
    """The label; refuses one that is not a class."""
    if label not in names:
        raise DataError(
            f"{site / 'decisions.csv'}: the label '{label}' is not a class; allowed: {', '.join(names[:10])}."
        )
    return label
