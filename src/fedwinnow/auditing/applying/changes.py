"""Which labels change: people's decisions, read from audit.csv and decisions.csv of every site."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedwinnow.auditing.audit_folder import CANNOT_TELL, KEEP, REVIEW, TOO_FEW, read_audit, read_site
from fedwinnow.auditing.decisions import ACCEPT, check_reviewer, labels_by_sample, read_decisions
from fedwinnow.errors import DataError, UsageError, unknown


@dataclass(frozen=True)
class Change:
    """One label that becomes another."""

    given: str
    label: str
    source: str  # who decided: "review" (a person) or "audit" (accepted because of its p_wrong)


@dataclass(frozen=True)
class CorrectionPlan:
    """All changes to a data set, and counts of the labels that stay."""

    changes: dict[str, Change]  # by id
    source: str  # the spec of the data
    kept: int  # labels that people looked at and kept
    open: int  # labels to review without a decision
    disputed: list[str]  # ids on which reviewers differ; their labels stay

    @property
    def unseen(self) -> int:
        """How many labels change although no person has looked at them."""
        return sum(change.source == "audit" for change in self.changes.values())


def site_folders(folder: Path) -> list[Path]:
    """The folder of one site, or those of all sites of an audit."""
    if (folder / "site.json").exists():
        return [folder]
    if (folder / "sites.csv").exists():
        found = sorted(path.parent for path in folder.glob("*/site.json"))
        if found:
            return found
    read_site(folder)  # raises an error that names the right folder
    return []


def plan_for(folder: Path, accept_above: float | None = None, reviewer: str | None = None) -> CorrectionPlan:
    """The changes that follow from the decisions in a folder."""
    if accept_above is not None and not 0 < accept_above <= 1:
        raise UsageError(f"--accept-above {accept_above} was given; allowed: above 0 and at most 1.")
    changes: dict[str, Change] = {}
    disputed: list[str] = []
    kept = undecided = 0
    sources = set()
    among = None if reviewer is None else [known_reviewer(folder, reviewer)]
    for site in site_folders(folder):
        facts, decided = read_site(site), read_decisions(site)
        sources.add(str(facts["data"]["source"]))
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
            else:
                changes[row["id"]] = Change(row["given"], row["suggested"], "audit")
    return CorrectionPlan(changes, sources.pop() if len(sources) == 1 else "", kept, undecided, disputed)


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
