"""A paper's table reproduced: our runs beside the paper's numbers, and how well the order of the methods agrees."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedwinnow.errors import DataError, unknown
from fedwinnow.metrics.detection import pearson, shared_ranks
from fedwinnow.study.arrangement import Arrangement, uneven_settings
from fedwinnow.study.recipes import Recipe, Scale
from fedwinnow.study.run_records import Record, read_record
from fedwinnow.study.statistics import Test
from fedwinnow.study.sweep_plan import Plan
from fedwinnow.study.table import Cell, Table, TableColumn, Wanted, build
from fedwinnow.study.table_figures import shown_figures
from fedwinnow.study.table_names import Names

ON_FEATURES = (
    "ON FROZEN FEATURES, not the paper's setting: the paper's numbers were trained from pixels, ours are a linear head "
    "on the features of EfficientNet-Lite0 (--encoder lite). Data, sites, scenes, epochs and batches are the paper's; "
    "there are no views, fewer rounds (40 to 200), and the usual optimiser of such a head."
)
FITS = 1000  # mixtures per run; the paper fits 10,000, which changes the second decimal


@dataclass(frozen=True)
class Style:
    """How a table is printed: names, caption and label."""

    rename: Mapping[str, str] = field(default_factory=dict)
    caption: str = ""
    label: str = ""


PLAIN_STYLE = Style()


def published_table(
    recipe: Recipe, rows: Sequence[str] = (), columns: Sequence[str] = (), style: Style = PLAIN_STYLE
) -> Table:
    """The numbers that the paper prints, alone."""
    for row in rows:
        if row not in recipe.rows:
            raise unknown(f"row of {recipe.name}", row, recipe.rows)
    chosen, printed = tuple(rows) or recipe.rows, recipe.published()
    names = Names(style.rename, recipe.column_words())
    score = recipe.table.get("score", "accuracy")
    figures = shown_figures(",".join(recipe.figures), score)
    names.check(chosen, recipe.columns(columns), figures)
    made = [
        TableColumn(column, shown, {row: Cell({}, published=printed.get((row, column, shown.name))) for row in chosen})
        for column in recipe.columns(columns)
        for shown in figures
    ]
    filled = tuple(column for column in made if any(cell.published for cell in column.cells.values()))
    caption = style.caption or f"As printed in {recipe.title}, {score.replace('_', ' ')} where nothing else is said."
    notes = [] if not recipe.missing else [f"Not in this version of fedwinnow: {', '.join(recipe.missing)}."]
    notes += sorted({f"Note of the table: {cell['note']}." for cell in recipe.cells if cell["note"]})
    return Table(chosen, filled, {}, caption, tuple(notes), (), names, style.label, ours=False)


def recipe_table(
    recipe: Recipe,
    plan: Plan,
    scale: Scale,
    columns: Sequence[str] = (),
    test: Test = "t",
    alpha: float = 0.05,
    *,
    chosen: Sequence[str] = (),
    style: Style = PLAIN_STYLE,
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
    names = Names(style.rename, recipe.column_words())
    layout = Arrangement(rows, recipe.columns(columns), runs, notes_of(recipe, scale, records), names)
    usual = ("last10", "best") if recipe.figures[0] in ("last10", "best", "last") else ()
    wanted = Wanted(
        show=",".join(dict.fromkeys((*recipe.figures, *usual))),
        score=recipe.table.get("score", "accuracy"),
        test=test,
        alpha=alpha,
        order=rows,
        published=recipe.published(),
        rename=style.rename,
        caption=style.caption,
        label=style.label,
        paper="paper, from pixels" if scale == "features" else "paper",
    )
    made = build(layout, records, wanted)
    order = tuple(filter(None, (agreement(column, names) for column in made.columns)))
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
    if scale == "features":
        notes.append(ON_FEATURES)
    notes += recipe.book["says"]
    if left_out := recipe.lacking(scale):
        notes.append(f"Not possible on frozen features, which have no views: {', '.join(left_out)}.")
    if recipe.missing:
        notes.append(f"Not in this version: {', '.join(recipe.missing)}.")
    # Settings that follow from the column are the same for all its rows.
    return (*notes, *uneven_settings(records, ("method",), ("data", "partition", "noise", "clients")))


def agreement(column: TableColumn, names: Names) -> str:
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
        f"Order of the {len(both)} rows against the paper's, {names.column(column.setting)}, "
        f"{names.figure(column.shown)}: Spearman {words}."
    )


def default_folder(recipe: Recipe, scale: Scale) -> Path:
    """The folder of a recipe's runs without --out."""
    return Path("papers") / f"{recipe.name}-{scale}"
