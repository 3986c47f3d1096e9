"""`fedwinnow table`: a table of runs, with a statistical test."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from fedwinnow.commands.common import Flags, escaped

if TYPE_CHECKING:
    from fedwinnow.study.table import Table

Folders = Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]


@dataclass(frozen=True)
class TableOfRuns(Flags):
    """A table of run folders, with means, deviations and a paired test over seeds.

    A row is a method, a column a scene; a folder that holds run folders stands for all of them. The best of a column
    is bold only if a paired test finds it better than every other row.
    """

    folders: Folders = ()
    """Run folders, or folders that have some."""
    show: str = "last10,last,best,validation"
    """The figures, side by side: last10, last, best, validation, auroc, precision, recall, memorised, seconds ..."""
    score: Literal["accuracy", "balanced_accuracy", "macro_f1"] = "accuracy"
    """Which score of last10, last, best and validation."""
    rows: str = "method"
    """The settings that make a row, separated by commas."""
    columns: str | None = None
    """The settings that make a column, separated by commas; none: those that differ."""
    test: Literal["t", "wilcoxon"] = "t"
    """The paired test over seeds: Student's t, or Wilcoxon's signed ranks (needs six seeds or more)."""
    alpha: float = 0.05
    """The largest corrected p-value with which a difference counts."""
    against: str | None = None
    """A row to compare with each of the others over all columns, below the table (Wilcoxon's test, Holm-corrected)."""
    order: tuple[str, ...] = ()
    """Rows that come first, in this order."""
    rename: tuple[str, ...] = ()
    """Other names for rows, columns or figures, as old=new: feddiv=Ours "iid, constant:rate=0.4=40 %"."""
    caption: str = ""
    """A caption of your own; what the numbers and marks mean then stands below the table (LaTeX: in comments)."""
    label: str = ""
    """LaTeX: the label, such as tab:results. The table needs the package booktabs."""
    format: Literal["terminal", "markdown", "latex", "csv"] = "terminal"
    """What to print."""
    out: Path | None = None
    """Write a file instead; it ends in .md, .tex, .csv or .json."""

    def run(self) -> int:
        """Read the folders, print or write the table."""
        from fedwinnow.study.table import Wanted, make_table
        from fedwinnow.study.table_names import parsed_names

        columns = None if self.columns is None else split_names(self.columns)
        wanted = Wanted(
            self.show,
            self.score,
            split_names(self.rows),
            columns,
            self.test,
            self.alpha,
            self.against,
            self.order,
            rename=parsed_names(self.rename),
            caption=self.caption,
            label=self.label,
        )
        present(self, make_table(self.folders, wanted), self.format, self.out)
        return 0


def split_names(text: str) -> tuple[str, ...]:
    """Names separated by commas; hyphens become underscores, as in the names of settings."""
    return tuple(name.strip().replace("-", "_") for name in text.split(",") if name.strip())


def present(flags: Flags, table: Table, form: str, out: Path | None) -> None:
    """Write or print a table as asked."""
    from fedwinnow.study import table_writers

    if out is not None:
        table_writers.write(table, out)
    flags.emit(table_writers.as_value(table))
    console = flags.console()
    if out is not None:
        console.print(f"written to [bold]{escaped(out)}[/]")
    elif form == "terminal":
        table_writers.for_terminal(table).show(console)
        console.print()
        for words in (table.caption, *table_writers.below(table)):
            console.print(words, style="dim", markup=False)
    elif not (flags.quiet or flags.json):
        print(
            {"markdown": table_writers.markdown, "latex": table_writers.latex, "csv": table_writers.as_csv}[form](
                table
            ),
            end="",
        )
