"""A paper's table reproduced: our runs beside the paper's numbers, and how well the order of the methods agrees."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from fedwinnow.errors import DataError
from fedwinnow.metrics.detection import pearson, shared_ranks
from fedwinnow.study.recipes import Recipe, Scale
from fedwinnow.study.run_records import Record, read_record
from fedwinnow.study.statistics import Test
from fedwinnow.study.sweep_plan import Plan
from fedwinnow.study.table import Table, TableColumn, Wanted, build
from fedwinnow.study.table_layout import Layout, uneven_settings

FITS = 1000  # mixtures per run; the paper fits 10,000, which changes the second decimal


def recipe_table(
    recipe: Recipe,
    plan: Plan,
    scale: Scale,
    columns: Sequence[str] = (),
    test: Test = "t",
    alpha: float = 0.05,
    *,
    chosen: Sequence[str] = (),
) -> Table:
    """The table of a recipe: the chosen rows of the paper, by default all, then the other rows of the plan."""
    runs: dict[tuple[str, str], dict[int, Record]] = {}
    records = []
    for job in plan.jobs:
        if (job.folder / "summary.json").exists():
            record = read_record(job.folder)
            if "study.recall" in recipe.figures:
                record = with_study(record)
            records.append(record)
            if record.finished:
                runs.setdefault((job.row, job.scene), {})[job.seed] = record
    if not runs:
        raise DataError(f"{plan.out}: no finished run of {recipe.name}; start with: fedwinnow paper run {recipe.name}")
    rows = tuple(dict.fromkeys((*(chosen or recipe.rows), *(job.row for job in plan.jobs))))
    layout = Layout(rows, recipe.columns(columns), runs, notes_of(recipe, scale, records))
    usual = ("last10", "best") if recipe.figures[0] in ("last10", "best", "last") else ()
    wanted = Wanted(
        show=",".join(dict.fromkeys((*recipe.figures, *usual))),
        score=recipe.table.get("score", "accuracy"),
        test=test,
        alpha=alpha,
        order=rows,
        published=recipe.published(),
    )
    made = build(layout, records, wanted)
    order = tuple(filter(None, map(agreement, made.columns)))
    return dataclasses.replace(made, notes=(*made.notes, *order))


def with_study(record: Record) -> Record:
    """A record with the scores of many mixtures over the clients, with the run's normalisation of indicators."""
    from fedwinnow.experiment.detection_study import Fitting, study_detection

    if not record.finished:
        return record
    rows = study_detection(record.folder, Fitting(fits=FITS, normalise=None))
    return dataclasses.replace(record, summary={**record.summary, "study": rows[-1]})


def notes_of(recipe: Recipe, scale: Scale, records: list[Record]) -> tuple[str, ...]:
    """Notes on the scale, on what differs from the paper, and on missing rows."""
    notes = [f"{recipe.title}."]
    if scale == "laptop":
        notes.append("A MINIATURE, not the paper's setting: " + " ".join(recipe.book["changed"]))
    notes += recipe.book["says"]
    if recipe.missing:
        notes.append(f"Not in this version: {', '.join(recipe.missing)}.")
    # Settings that follow from the column are the same for all its rows.
    return (*notes, *uneven_settings(records, ("method",), ("data", "partition", "noise", "clients")))


def agreement(column: TableColumn) -> str:
    """How well the order of the methods agrees with the paper's; empty for fewer than three rows."""
    both = [
        (cell.mean, cell.published[0]) for cell in column.cells.values() if cell.mean is not None and cell.published
    ]
    if len(both) < 3:
        return ""
    ours, theirs = (shared_ranks([pair[side] for pair in both]) for side in (0, 1))
    rank = pearson(ours, theirs)
    words = "undefined" if rank is None else f"{rank:.2f}"
    return (
        f"Order of the {len(both)} rows against the paper's, {column.setting}, {column.shown.name}: Spearman {words}."
    )


def default_folder(recipe: Recipe, scale: Scale) -> Path:
    """The folder of a recipe's runs without --out."""
    return Path("papers") / f"{recipe.name}-{scale}"
