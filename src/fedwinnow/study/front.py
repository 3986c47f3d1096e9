"""Studies from Python: the same names and defaults as the command line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from fedwinnow.study.names import Score
from fedwinnow.study.statistics import Test
from fedwinnow.study.table import Table, Wanted, make_table


def table(
    *folders: str | Path | Iterable[str | Path],
    show: str = "last10,last,best,validation",
    score: Score = "accuracy",
    rows: Sequence[str] = ("method",),
    columns: Sequence[str] | None = None,
    test: Test = "t",
    alpha: float = 0.05,
) -> Table:
    """A table of every run in these folders; `str(table)` is Markdown, `table.save("table.tex")` writes a file.

    The options are the flags of `fedwinnow table`.
    """
    places: list[str | Path] = []
    for folder in folders:
        places += [folder] if isinstance(folder, str | Path) else folder
    return make_table(places, Wanted(show, score, rows, columns, test, alpha))
