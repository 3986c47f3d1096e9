"""The labels that one reviewer has to decide, the decisions so far, and undo."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

from fedwinnow.auditing.audit_folder import REVIEW, read_audit, read_site
from fedwinnow.auditing.decisions import (
    ACCEPT,
    DECISIONS,
    KEEP,
    OTHER,
    Decision,
    agreement,
    read_decisions,
    reviewers,
    save_decision,
    sweep_decisions,
)
from fedwinnow.errors import UsageError

PICTURE = re.compile(r"[0-9]{6,}\.(png|jpg)")


class ReviewQueue:
    """One audited site and one reviewer. Decisions are saved in the site's folder at once, so a crash loses nothing."""

    def __init__(self, folder: Path, reviewer: str) -> None:
        self.folder, self.reviewer = folder, reviewer
        self.site = read_site(folder)
        self.rows = {row["id"]: row for row in read_audit(folder) if row["decision"] == REVIEW}
        self.steps: list[tuple[str, Decision | None]] = []  # what was there before each step of this session
        self.one_at_a_time = threading.Lock()
        read_decisions(folder)  # refuses a broken file now, not at the first decision
        sweep_decisions(folder)

    def state(self) -> dict[str, Any]:
        """Everything that the page shows, except the samples."""
        decided = read_decisions(self.folder)
        by_sample: dict[str, dict[str, Decision]] = {}
        for (sample, who), one in decided.items():
            by_sample.setdefault(sample, {})[who] = one
        queue = []
        for sample, row in self.rows.items():
            words = by_sample.get(sample, {})
            own = words.get(self.reviewer)
            # A reviewer sees the decisions of others only after deciding, so that reviewers decide independently.
            others = [
                {"reviewer": who, "decision": one.decision, "label": one.label}
                for who, one in words.items()
                if who != self.reviewer and own is not None
            ]
            decision = None if own is None else {"decision": own.decision, "label": own.label}
            queue.append(
                {
                    "id": sample,
                    "given": row["given"],
                    "suggested": row["suggested"],
                    "p": float(row["p_wrong"]),
                    "picture": sample in self.site["pictures"],
                    "decision": decision,
                    "others": others,
                }
            )
        return {
            "site": self.site["site"],
            "data": self.site["data"]["name"],
            "classes": self.site["class_names"],
            "reviewer": self.reviewer,
            "reviewers": reviewers(decided),
            "agreement": agreement(decided),
            "pictures": bool(self.site["pictures"]),
            "meaning": self.site.get("p_wrong", ""),
            "queue": queue,
        }

    def sample(self, name: str) -> dict[str, Any]:
        """One sample, with others of the given and of the suggested class to compare it with."""
        row = self.row(name)
        sides = self.site["compared"].get(name, [[], []])
        return {
            **self.shown(name),
            "given": [self.shown(one) for one in sides[0]],
            "suggested": [self.shown(one) for one in sides[1]] if row["suggested"] != row["given"] else [],
        }

    def shown(self, name: str) -> dict[str, Any]:
        """What the page shows of a sample."""
        return {
            "id": name,
            "picture": name in self.site["pictures"],
            "texts": self.site["texts"].get(name, {}),
            "against": self.site.get("against", {}).get(name, {}),
            "ignored": self.site.get("ignored", []),
        }

    def picture(self, name: str) -> Path | None:
        """The file of a picture, if the audit made one."""
        file = str(self.site["pictures"].get(name, ""))
        path = self.folder / "previews" / file
        return path if PICTURE.fullmatch(file) and path.is_file() and not path.is_symlink() else None

    def row(self, name: str) -> dict[str, str]:
        """The line of a sample that is to be reviewed."""
        if name not in self.rows:
            raise UsageError(f"'{name[:60]}' is not among the labels to review.")
        return self.rows[name]

    def decide(self, name: str, decision: str, label: str = "") -> None:
        """Save a decision; it is on disk when this returns."""
        row = self.row(name)
        if decision not in DECISIONS:
            raise UsageError(f"'{decision[:60]}' is not a decision; allowed: {', '.join(DECISIONS)}.")
        if decision == OTHER and label not in self.site["class_names"]:
            raise UsageError(f"'{label[:60]}' is not a class.")
        chosen = {ACCEPT: row["suggested"], KEEP: row["given"], OTHER: label}.get(decision, "")
        with self.one_at_a_time:
            made = Decision.now(name, self.reviewer, decision, chosen)
            self.steps.append((name, save_decision(self.folder, name, self.reviewer, made)))

    def undo(self) -> str | None:
        """Undo the last decision, also one of an earlier session, and return its sample."""
        with self.one_at_a_time:
            if self.steps:
                name, before = self.steps[-1]
            else:
                earlier = [sample for sample, who in read_decisions(self.folder) if who == self.reviewer]
                if not earlier:
                    return None
                name, before = earlier[-1], None
            save_decision(self.folder, name, self.reviewer, before)
            del self.steps[-1:]  # after saving, so that a failed undo can be tried again
        return name
