"""Labels drawn by lot for one reviewer, who sees neither score nor suggestion, and what follows from the answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedwinnow.auditing.look_figures import DEFAULT_COST, of_findings, worth_in_words
from fedwinnow.auditing.looks import Survey, draw_looks, findings_of, looks_at
from fedwinnow.auditing.reviewing.review_queue import ReviewQueue, Row
from fedwinnow.errors import UsageError

FEWEST, MOST = 2, 2000


class AnchorQueue(ReviewQueue):
    """The looks at a site, or at all sites of an audit; further ones are drawn as soon as the first are decided."""

    blind = True

    def __init__(self, folder: Path, reviewer: str, total: int, cost: float = DEFAULT_COST) -> None:
        if not FEWEST <= total <= MOST:
            raise UsageError(f"--anchor {total} was given; allowed: {FEWEST} to {MOST} looks. 30 are usual.")
        self.total, self.cost = total, cost
        self.survey = Survey(folder)
        super().__init__(folder, reviewer)

    def chosen(self, first: int | None) -> list[tuple[Path, Row]]:
        """The looks, as far as they are drawn, in an order that tells nothing about suspicion."""
        draw_looks(self.survey, self.total)
        found = [
            ((look.step, site.order_of(name)), site.folder, site.rows[site.by_id[name]])
            for site in self.survey.sites
            for name, look in looks_at(site).items()
        ]
        return [(folder, row) for _, folder, row in sorted(found, key=lambda one: one[0])]

    def decided(self) -> None:
        """The next step is drawn when this one is done."""
        for folder, row in self.chosen(None):
            if self.name_of(folder, row["id"]) not in self.rows:
                self.add(folder, row)

    def state(self) -> dict[str, Any]:
        """Also what the looks say so far."""
        threshold = float(self.site.get("threshold", 0.5))
        found = of_findings(findings_of(self.survey), threshold=threshold, cost=self.cost, planned=len(self.rows))
        words = {"total": max(self.total, len(self.rows)), "worth_in_words": worth_in_words(found)}
        return super().state() | {"looks": found | words}
