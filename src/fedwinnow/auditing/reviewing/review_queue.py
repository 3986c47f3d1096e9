"""The labels that one reviewer has to decide, the decisions so far, and undo."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

from fedwinnow.auditing.audit_folder import REVIEW, TOO_FEW, WHOLE, read_audit, read_site, site_folders
from fedwinnow.auditing.decisions import (
    ACCEPT,
    DECISIONS,
    KEEP,
    OTHER,
    Decided,
    Decision,
    agreement,
    read_decisions,
    reviewers,
    save_decision,
    sweep_decisions,
)
from fedwinnow.errors import UsageError

PICTURE = re.compile(r"[0-9]{6,}\.(png|jpg)")
Row = dict[str, str]


class ReviewQueue:
    """One audited site (or all sites of an audit on one machine) and one reviewer.

    Decisions are saved in the site's folder at once, so a crash loses nothing. `first` shows so many labels in the
    order of the audit instead of those that it called or marked.
    """

    blind = False  # whether score and suggestion are hidden

    def __init__(self, folder: Path, reviewer: str, first: int | None = None) -> None:
        self.folder, self.reviewer = folder, reviewer
        self.folders = site_folders(folder)
        self.facts = {place: read_site(place) for place in self.folders}
        self.site = self.facts[self.folders[0]]
        self.steps: list[tuple[str, Decision | None]] = []  # what was there before each step of this session
        self.one_at_a_time = threading.Lock()
        for place in self.folders:
            read_decisions(place)  # refuses a broken file now, not at the first decision
            sweep_decisions(place)
        self.where: dict[str, tuple[Path, str]] = {}  # name on the page -> folder and id
        self.rows: dict[str, Row] = {}
        for place, row in self.chosen(first):
            self.add(place, row)

    @property
    def title(self) -> str:
        """What is reviewed."""
        return str(self.site["site"]) if len(self.folders) == 1 else f"all sites of {self.site['data']['name']}"

    def name_of(self, folder: Path, sample: str) -> str:
        """The name of a label on the page; ids of two sites may be the same."""
        return sample if len(self.folders) == 1 else f"{folder.name}/{sample}"

    def add(self, folder: Path, row: Row) -> None:
        """Put a label at the end of the queue."""
        name = self.name_of(folder, row["id"])
        self.where[name], self.rows[name] = (folder, row["id"]), row

    def chosen(self, first: int | None) -> list[tuple[Path, Row]]:
        """The labels to show: the first so many in order, or those that the audit marked, or those that it called."""
        rows = [(place, row) for place in self.folders for row in read_audit(place)]
        if len(self.folders) > 1:
            rows.sort(key=lambda one: -number_of(one[1].get("score", "")))
        if first is not None:
            if first < 1:
                raise UsageError(f"--first {first} was given; allowed: 1 or more.")
            return [(place, row) for place, row in rows if row["decision"] != TOO_FEW][:first]
        marked = [(place, row) for place, row in rows if row.get("look")]
        return marked or [(place, row) for place, row in rows if row["decision"] == REVIEW]

    def decisions(self) -> Decided:
        """All decisions, by name on the page."""
        found: Decided = {}
        for place in self.folders:
            found |= {(self.name_of(place, sample), who): one for (sample, who), one in read_decisions(place).items()}
        return found

    def state(self) -> dict[str, Any]:
        """Everything that the page shows, except the samples."""
        decided = self.decisions()
        by_sample: dict[str, dict[str, Decision]] = {}
        for (sample, who), one in decided.items():
            by_sample.setdefault(sample, {})[who] = one
        return {
            "site": self.title,
            "data": self.site["data"]["name"],
            "classes": self.site["class_names"],
            "reviewer": self.reviewer,
            "reviewers": reviewers(decided),
            "agreement": agreement(decided),
            "pictures": any(facts["pictures"] for facts in self.facts.values()),
            "meaning": self.site.get("p_wrong", ""),
            "blind": self.blind,
            "queue": [self.item(name, row, by_sample.get(name, {})) for name, row in self.rows.items()],
        }

    def item(self, name: str, row: Row, words: dict[str, Decision]) -> dict[str, Any]:
        """A label as the page shows it."""
        own = words.get(self.reviewer)
        # A reviewer sees the decisions of others only after deciding, so that reviewers decide independently.
        others = [
            {"reviewer": who, "decision": one.decision, "label": one.label}
            for who, one in words.items()
            if who != self.reviewer and own is not None
        ]
        folder, sample = self.where[name]
        shown = {
            "id": name,
            "given": row["given"],
            "picture": sample in self.facts[folder]["pictures"],
            "decision": None if own is None else {"decision": own.decision, "label": own.label},
            "others": others,
        }
        if self.blind:
            return shown
        return shown | {"suggested": row["suggested"], "p": float(row["p_wrong"]) if row["p_wrong"] else None}

    def sample(self, name: str) -> dict[str, Any]:
        """One sample, with others of the given and of the suggested class to compare it with."""
        row = self.row(name)
        folder, sample = self.where[name]
        sides = self.facts[folder]["compared"].get(sample, [[], []]) if not self.blind else [[], []]
        return {
            **self.shown(folder, sample),
            "given": [self.shown(folder, one) for one in sides[0]],
            "suggested": [self.shown(folder, one) for one in sides[1]] if row["suggested"] != row["given"] else [],
        }

    def shown(self, folder: Path, sample: str) -> dict[str, Any]:
        """What the page shows of a sample."""
        facts = self.facts[folder]
        return {
            "id": self.name_of(folder, sample),
            "picture": sample in facts["pictures"],
            "texts": facts["texts"].get(sample, {}),
            "against": {} if self.blind else facts.get("against", {}).get(sample, {}),
            "ignored": facts.get("ignored", []),
        }

    def picture(self, name: str, *, whole: bool = False) -> Path | None:
        """The file of a picture, if the audit made one; `whole`: in its own size, where there is such a file."""
        for folder, facts in self.facts.items():
            prefix = self.name_of(folder, "")
            sample = name.removeprefix(prefix)
            if name.startswith(prefix) and sample in facts["pictures"]:
                own = facts.get(WHOLE, {}).get(sample) if whole else None
                file = str(own or facts["pictures"][sample])
                path = folder / (WHOLE if own else "previews") / file
                return path if PICTURE.fullmatch(file) and path.is_file() and not path.is_symlink() else None
        return None

    def row(self, name: str) -> Row:
        """The line of a sample that is to be reviewed."""
        if name not in self.rows:
            raise UsageError(f"'{name[:60]}' is not among the labels to review.")
        return self.rows[name]

    def decide(self, name: str, decision: str, label: str = "") -> None:
        """Save a decision; it is on disk when this returns."""
        row = self.row(name)
        allowed = [word for word in DECISIONS if not (self.blind and word == ACCEPT)]
        if decision not in allowed:
            raise UsageError(f"'{decision[:60]}' is not a decision; allowed: {', '.join(allowed)}.")
        if decision == OTHER and label not in self.site["class_names"]:
            raise UsageError(f"'{label[:60]}' is not a class.")
        chosen = {ACCEPT: row["suggested"], KEEP: row["given"], OTHER: label}.get(decision, "")
        folder, sample = self.where[name]
        with self.one_at_a_time:
            made = Decision.now(sample, self.reviewer, decision, chosen)
            self.steps.append((name, save_decision(folder, sample, self.reviewer, made)))
            self.decided()

    def decided(self) -> None:
        """What follows a decision; nothing here."""

    def undo(self) -> str | None:
        """Undo the last decision, also one of an earlier session, and return its sample."""
        with self.one_at_a_time:
            if self.steps:
                name, before = self.steps[-1]
            elif earlier := self.earlier():
                name, before = earlier, None
            else:
                return None
            folder, sample = self.where.get(name, (self.folders[0], name))
            save_decision(folder, sample, self.reviewer, before)
            del self.steps[-1:]  # after saving, so that a failed undo can be tried again
        return name

    def earlier(self) -> str | None:
        """The label that this reviewer decided last, in an earlier session."""
        mine = [
            (one.time, number, name)
            for number, ((name, who), one) in enumerate(self.decisions().items())
            if who == self.reviewer and (name in self.where or (len(self.folders) == 1 and not self.blind))
        ]
        if len(self.folders) == 1:
            return mine[-1][2] if mine else None
        return max(mine)[2] if mine else None


def number_of(text: str) -> float:
    """The number that a cell holds; the smallest if it holds none."""
    try:
        return float(text)
    except ValueError:
        return float("-inf")
