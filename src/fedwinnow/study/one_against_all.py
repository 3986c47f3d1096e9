"""One row against every other, tested over all settings instead of within each one."""

from __future__ import annotations

from dataclasses import dataclass

from fedwinnow.errors import UsageError, unknown
from fedwinnow.metrics.task import Figure
from fedwinnow.study import statistics
from fedwinnow.study.arrangement import PLAIN, Arrangement
from fedwinnow.study.run_records import Record
from fedwinnow.study.table_figures import Shown
from fedwinnow.study.table_names import Names


@dataclass(frozen=True)
class Duel:
    """How far a row is ahead of an opponent, in every setting that both have."""

    row: str
    opponent: str
    differences: tuple[float, ...]  # by setting, means over the seeds that both played
    shown: Shown
    names: Names = PLAIN

    @property
    def p(self) -> Figure:
        """Wilcoxon's test over settings, because seeds of the same setting are not independent."""
        return statistics.paired_p(self.differences, [0.0] * len(self.differences), "wilcoxon")

    def words(self, corrected: Figure) -> str:
        """The outcome in one line."""
        settings = len(self.differences)
        who = f"{self.names.row(self.row)} against {self.names.row(self.opponent)}"
        if not settings:
            return f"{who}: no setting has both."
        mean = statistics.mean(self.differences) or 0.0
        difference = f"{'-' if mean < 0 else '+'}{self.shown.text(abs(mean))}"
        better = sum(one > 0 for one in self.differences)
        test = "" if corrected is None else f"; p = {corrected:.3f}"
        return f"{who}: {difference} on average, better in {better} of {settings}{test}."


def duels(layout: Arrangement, shown: Shown, row: str) -> list[str]:
    """The notes below a table about this row and each of the others."""
    names = layout.names
    row = names.row_named(row, layout.rows)
    if row not in layout.rows:
        raise unknown("row for --against", row, layout.rows)
    found = [duel(layout, shown, row, other) for other in layout.rows if other != row and layout.competes(other)]
    if not found:
        raise UsageError(
            f"--against {row} was given, but there is no other row to compare it with (references out of competition "
            f"do not count). The rows: {', '.join(layout.rows)}. Add runs of another method, or leave --against out."
        )
    corrected = statistics.holm({one.opponent: one.p for one in found})
    heading = (
        f"{names.row(row)} against each other row, by {names.figure(shown)}: mean difference over settings, and a "
        f"{statistics.TESTS['wilcoxon']} over settings (two-sided, Holm-corrected)."
    )
    return [heading, *(one.words(corrected[one.opponent]) for one in found)]


def duel(layout: Arrangement, shown: Shown, row: str, opponent: str) -> Duel:
    """Compare two rows in every setting, at the seeds at which they have the same scene."""
    settings = ((layout.runs.get((row, one), {}), layout.runs.get((opponent, one), {})) for one in layout.columns)
    played = [pairs for mine, theirs in settings if (pairs := paired(mine, theirs, shown))]
    sign = 1 if shown.higher_is_better else -1
    means = (statistics.mean([sign * (first - second) for first, second in pairs]) for pairs in played)
    return Duel(row, opponent, tuple(mean for mean in means if mean is not None), shown, layout.names)


def paired(mine: dict[int, Record], theirs: dict[int, Record], shown: Shown) -> list[tuple[float, float]]:
    """A figure of two rows at every seed at which both have it and have the same scene."""
    found = []
    for seed in sorted(mine.keys() & theirs.keys()):
        first, second = mine[seed].figure(shown.path), theirs[seed].figure(shown.path)
        if first is not None and second is not None and mine[seed].scene == theirs[seed].scene:
            found.append((first, second))
    return found
