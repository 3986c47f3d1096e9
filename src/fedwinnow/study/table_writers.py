"""A table as Markdown, LaTeX, CSV, JSON or for the terminal, with the same content."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedwinnow.errors import UsageError
from fedwinnow.study.table import OUTDATED, Cell, Table, TableColumn

if TYPE_CHECKING:
    from rich.text import Text

    from fedwinnow.terminal import Grid

SUFFIXES = {".md": "markdown", ".tex": "latex", ".csv": "csv", ".json": "json"}
LATEX_LETTERS = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "≈": r"$\approx$",
    "–": "--",
    "†": r"$\dagger$",
    "<": r"$<$",
    ">": r"$>$",
    "|": r"$|$",
    "→": r"$\to$",
    "²": r"$^2$",
}


def write(table: Table, path: Path) -> None:
    """Write the table to a file; the suffix decides the format."""
    from fedwinnow.files import write_text

    if path.suffix not in SUFFIXES:
        raise UsageError(f"--out {path} was given; allowed: a file that ends in {', '.join(SUFFIXES)}.")
    forms = {"markdown": markdown, "latex": latex, "csv": as_csv, "json": as_json}
    write_text(path, forms[SUFFIXES[path.suffix]](table))


def heads(table: Table) -> list[tuple[str, str]]:
    """(setting, figure) of every printed column; a paper's numbers follow ours."""
    found = []
    for column in table.columns:
        setting, figure = table.names.column(column.setting), table.names.figure(column.shown)
        if table.ours:
            found.append((setting, figure))
        if has_published(column):
            found.append((setting, f"{figure}, {table.paper}" if table.ours else figure))
    return found


def has_published(column: TableColumn) -> bool:
    """Whether a paper prints numbers for this column."""
    return any(cell.published is not None for cell in column.cells.values())


def number(table: Table, column: TableColumn, cell: Cell) -> str:
    """Mean and deviation, with n if the cells have different numbers of seeds; a dash for an empty cell."""
    if cell.mean is None:
        return "–"
    text = column.shown.text(cell.mean)
    if cell.std is not None:
        text += f" ± {column.shown.text(cell.std)}"
    return text if len(table.seeds) == 1 else f"{text} (n={len(cell.values)})"


def paper_number(column: TableColumn, cell: Cell) -> str:
    """Mean and deviation as a paper prints them, with the same number of decimals in the whole column."""
    if cell.published is None:
        return "–"
    printed = [
        number for one in column.cells.values() if one.published for number in one.published if number is not None
    ]
    digits = max(len(f"{number:g}".partition(".")[2]) for number in printed)
    mean, std = cell.published
    return f"{mean:.{digits}f}" if std is None else f"{mean:.{digits}f} ± {std:.{digits}f}"


def texts(table: Table, row: str) -> list[tuple[str, str]]:
    """The printed cells of one row with their marks."""
    found: list[tuple[str, str]] = []
    for column in table.columns:
        cell = column.cells[row]
        if table.ours:
            found.append((number(table, column, cell), cell.mark))
        if has_published(column):
            found.append((paper_number(column, cell), ""))
    if table.ranks:
        found.append((f"{table.ranks[row]:.2f}" if row in table.ranks else "–", ""))
    return found


def title(table: Table, row: str) -> str:
    """The name of a row, with a mark if other code made one of its runs."""
    name = table.names.row(row)
    return f"{name} {OUTDATED}" if row in table.outdated else name


def markdown(table: Table) -> str:
    """A table for a README or an issue."""
    titles = [f"{setting}: {figure}" if setting != "all runs" else figure for setting, figure in heads(table)]
    titles = ["", *titles, *(["rank"] if table.ranks else [])]
    lines = ["| " + " | ".join(escaped(title) for title in titles) + " |", "|---" + "|---:" * (len(titles) - 1) + "|"]
    for row in table.rows:
        cells = [
            f"**{text}**" if mark == "best" else text + " ≈" * (mark == "tied") for text, mark in texts(table, row)
        ]
        lines.append("| " + " | ".join([escaped(title(table, row)), *cells]) + " |")
    return "\n".join([*lines, "", table.caption, *(f"\n{words}" for words in below(table))]) + "\n"


def below(table: Table) -> list[str]:
    """What stands below a table besides its caption."""
    return [words for words in (table.legend, *table.notes) if words]


def escaped(text: str) -> str:
    """The text, escaped for a Markdown cell."""
    return text.replace("|", "\\|")


def latex(table: Table) -> str:
    """A LaTeX table with the rules of booktabs; with a caption of the user's, the meaning of numbers is in comments."""
    titles = heads(table)
    last = ["rank"] if table.ranks else []
    groups = list(dict.fromkeys(setting for setting, _ in titles))
    spans = [(setting, sum(name == setting for name, _ in titles)) for setting in groups]
    upper = [rf"\multicolumn{{{size}}}{{c}}{{{for_latex(setting)}}}" for setting, size in spans] + [""] * len(last)
    lower = [for_latex(figure) for _, figure in titles] + last
    lines = ["% needs \\usepackage{booktabs}", r"\begin{table}", r"\centering"]
    lines += [rf"\begin{{tabular}}{{l{'r' * len(lower)}}}", r"\toprule"]
    if groups != ["all runs"]:
        lines += [" & ".join(["", *upper]) + r" \\", " ".join(rules_under([size for _, size in spans]))]
    lines += [" & ".join(["", *lower]) + r" \\", r"\midrule"]
    for row in table.rows:
        cells = [latex_cell(text, mark) for text, mark in texts(table, row)]
        lines.append(" & ".join([for_latex(title(table, row)), *cells]) + r" \\")
    own = bool(table.legend)  # the caption is the user's, so the rest goes into comments
    words = table.caption if own else " ".join([table.caption, *table.notes])
    lines += [r"\bottomrule", r"\end{tabular}", rf"\caption{{{for_latex(words)}}}"]
    lines += [rf"\label{{{table.label}}}"] if table.label else []
    lines += [r"\end{table}", *(f"% {' '.join(line.split())}" for line in (below(table) if own else ()))]
    return "\n".join(lines) + "\n"


def rules_under(sizes: list[int]) -> list[str]:
    """A thin rule under every head that spans columns; the first column has the names."""
    ends = [1 + sum(sizes[: place + 1]) for place in range(len(sizes))]
    return [rf"\cmidrule(lr){{{end - size + 1}-{end}}}" for end, size in zip(ends, sizes, strict=True)]


def latex_cell(text: str, mark: str) -> str:
    """A cell with its mark."""
    ready = for_latex(text)
    return rf"\textbf{{{ready}}}" if mark == "best" else ready + r" $\approx$" * (mark == "tied")


def for_latex(text: str) -> str:
    """The text, escaped for LaTeX."""
    return "".join(LATEX_LETTERS.get(letter, letter) for letter in text)


def as_csv(table: Table) -> str:
    """One line per cell, in the unit that is shown, for a spreadsheet."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        ["row", "setting", "figure", "n", "mean", "std", "mark", "p", "rank", "paper_mean", "paper_std", "outdated"]
    )
    for column in table.columns:
        for row in table.rows:
            cell, scale = column.cells[row], column.shown.scale
            values = [None if value is None else round(scale * value, 6) for value in (cell.mean, cell.std)]
            published = cell.published or (None, None)
            rank = table.ranks.get(row)
            ends = [cell.mark, short(cell.p), short(rank), *published, cell.outdated]
            names = (table.names.in_file(row), table.names.in_file(column.setting), column.shown.name)
            writer.writerow([*names, len(cell.values), *values, *ends])
    return text.getvalue()


def short(value: float | None) -> str:
    """A number with four digits; an empty text for None."""
    return "" if value is None else f"{value:.4g}"


def as_value(table: Table) -> dict[str, Any]:
    """The table for JSON: shares between 0 and 1, every seed, a paper's numbers as printed."""
    return {
        "caption": table.caption,
        "legend": table.legend,
        "names": {row: table.names.row(row) for row in table.rows},
        "notes": list(table.notes),
        "rows": list(table.rows),
        "references": list(table.references),
        "ranks": table.ranks,
        "columns": [
            {
                "setting": column.setting,
                "words": table.names.column(column.setting),
                "figure": column.shown.path,
                "cells": {
                    row: {
                        "n": len(cell.values),
                        "mean": cell.mean,
                        "std": cell.std,
                        "mark": cell.mark or None,
                        "p": cell.p,
                        "outdated": cell.outdated,
                        "seeds": {str(seed): value for seed, value in cell.values.items()},
                        "paper": None
                        if cell.published is None
                        else dict(zip(("mean", "std"), cell.published, strict=True)),
                    }
                    for row, cell in column.cells.items()
                },
            }
            for column in table.columns
        ],
    }


def as_json(table: Table) -> str:
    """The table as a JSON file."""
    return json.dumps(as_value(table), indent=1, allow_nan=False) + "\n"


def for_terminal(table: Table) -> Grid:
    """The table for the terminal."""
    from rich.text import Text

    from fedwinnow.terminal import Grid

    names = [(figure if setting == "all runs" else f"{setting}\n{figure}") for setting, figure in heads(table)]
    names += ["rank"] if table.ranks else []
    rows = [[Text(title(table, row)), *(marked(text, mark) for text, mark in texts(table, row))] for row in table.rows]
    return Grid("t" + "n" * len(names), [Text(), *map(Text, names)], rows)


def marked(text: str, mark: str) -> Text:
    """A cell with its mark."""
    from rich.text import Text

    return Text(text + " ≈" * (mark == "tied"), "bold" if mark == "best" else "")
