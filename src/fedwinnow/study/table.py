"""A table of runs: means over seeds, and a winner only if a paired test finds one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from fedwinnow.errors import DataError, UsageError, guess, speaks_python, unknown
from fedwinnow.metrics.task import Figure
from fedwinnow.notebook import html_table
from fedwinnow.study import statistics
from fedwinnow.study.arrangement import Arrangement, lay_out, named_layout
from fedwinnow.study.one_against_all import duels, paired
from fedwinnow.study.run_records import Record, finished, outdated_words, read_records
from fedwinnow.study.table_figures import PICKS, Score, Shown, shown_figures
from fedwinnow.study.table_names import Names

OUTDATED = "†"  # the mark of a row with outdated runs, and of the note that explains it
Mark = Literal["", "best", "tied"]
Published = dict[tuple[str, str, str], tuple[float, Figure]]  # (row, setting, figure) -> a paper's mean and std


@dataclass(frozen=True)
class Cell:
    """The values of one row in one column."""

    values: dict[int, float]  # by seed
    mark: Mark = ""
    p: Figure = None  # the corrected p-value of the comparison with the best row
    published: tuple[float, Figure] | None = None  # mean and std that a paper prints, in the unit that is shown
    outdated: int = 0  # how many of the runs were made by other code than there is now

    @property
    def mean(self) -> Figure:
        """Mean over the seeds."""
        return statistics.mean(list(self.values.values()))

    @property
    def std(self) -> Figure:
        """Sample standard deviation over the seeds."""
        return statistics.sample_std(list(self.values.values()))


@dataclass(frozen=True)
class TableColumn:
    """One setting and one figure."""

    setting: str
    shown: Shown
    cells: dict[str, Cell]  # by row


@dataclass(frozen=True)
class Table:
    """A table with everything that the writers print."""

    rows: tuple[str, ...]
    columns: tuple[TableColumn, ...]
    ranks: dict[str, float]
    caption: str
    notes: tuple[str, ...]
    references: tuple[str, ...] = ()  # rows out of competition
    names: Names = field(default_factory=Names)  # what rows and columns are called in print
    label: str = ""  # of a LaTeX table
    legend: str = ""  # what the numbers are and what the marks mean, if the caption does not say it
    paper: str = "paper"  # the head of a column of published numbers
    ours: bool = True  # whether our own numbers are shown; without them, a paper's alone

    @property
    def seeds(self) -> set[int]:
        """How many seeds the filled cells have."""
        return {len(cell.values) for column in self.columns for cell in column.cells.values() if cell.values}

    @property
    def outdated(self) -> set[str]:
        """The rows with a run that was made by other code than there is now."""
        return {row for column in self.columns for row, cell in column.cells.items() if cell.outdated}

    def __str__(self) -> str:
        from fedwinnow.study.table_writers import markdown

        return markdown(self)

    def _repr_html_(self) -> str:
        from fedwinnow.study.table_writers import below, heads, texts, title

        names = [figure if setting == "all runs" else f"{setting}: {figure}" for setting, figure in heads(self)]
        forms = {"best": "**{}**", "tied": "{} ≈", "": "{}"}
        rows = [(title(self, row), *(forms[mark].format(text) for text, mark in texts(self, row))) for row in self.rows]
        return html_table(("", *names, *(["rank"] if self.ranks else [])), rows, notes=(self.caption, *below(self)))

    @speaks_python
    def save(self, path: str | Path) -> None:
        """Write a file that ends in .md, .tex, .csv or .json."""
        from fedwinnow.study.table_writers import write

        write(self, Path(path))


@dataclass(frozen=True)
class Wanted:
    """What a table shows, and how it compares rows."""

    show: str = "last10,last,best,validation"
    score: Score = "accuracy"
    rows: Sequence[str] = ("method",)
    columns: Sequence[str] | None = None
    test: statistics.Test = "t"
    alpha: float = 0.05
    against: str | None = None  # the row that is compared with every other over all settings
    order: Sequence[str] = ()  # rows that come first, in this order
    published: Published = field(default_factory=dict)
    rename: Mapping[str, str] = field(default_factory=dict)  # a row's, column's or figure's name -> another
    caption: str = ""  # instead of the sentences about numbers and marks, which then stand below the table
    label: str = ""  # of a LaTeX table
    paper: str = "paper"  # the head of a column of published numbers

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 1:
            raise UsageError(f"--alpha {self.alpha} was given; allowed: above 0 and below 1.")
        if self.score not in get_args(Score):
            raise unknown("score", self.score, get_args(Score))
        if self.test not in statistics.TESTS:
            raise unknown("test", self.test, statistics.TESTS)
        for name, keys in (("rows", self.rows), ("columns", self.columns)):
            if isinstance(keys, str):
                raise UsageError(f'{name}="{keys}" was given; allowed: a list of settings, such as ["{keys}"].')
        if not self.rows:
            raise UsageError("--rows is empty; allowed: the settings that make a row, such as method.")


def make_table(places: Iterable[str | Path], wanted: Wanted) -> Table:
    """A table of every run in these folders."""
    return table_of(read_records(places), wanted)


def table_of(records: Sequence[Record], wanted: Wanted) -> Table:
    """A table of these runs; a note names those that are not finished and do not count."""
    shown_figures(wanted.show, wanted.score)
    done = finished(records)
    chosen = tuple(wanted.rows) != ("method",) or wanted.columns is not None
    names = Names(wanted.rename)
    layout = None if chosen else named_layout(done, names)
    return build(layout or lay_out(done, wanted.rows, wanted.columns, names), records, wanted)


def build(layout: Arrangement, records: Sequence[Record], wanted: Wanted) -> Table:
    """A table of runs that are sorted into cells already."""
    shown = shown_figures(wanted.show, wanted.score)
    done = finished(records)
    known = [figure for figure in shown if any(record.figure(figure.path) is not None for record in done)]
    if not known:
        raise DataError(
            f"no run has a value for {', '.join(figure.path for figure in shown)}.{meant(shown, done)} "
            f"{done[0].folder / 'summary.json'} has the values that there are."
        )
    names = layout.names
    names.check(layout.rows, layout.columns, known)
    older = [f"{OUTDATED} {words}" for words in outdated_words(done)]
    notes = [*layout.notes, *older, *unfinished(records), *absent(shown, known, done)]
    notes += unpaired(layout)
    notes += duels(layout, known[0], wanted.against) if wanted.against else []
    columns = tuple(judged(layout, setting, figure, wanted) for setting in layout.columns for figure in known)
    order = [names.row_named(name, layout.rows) for name in wanted.order]
    for name in order:
        if name not in layout.rows:
            raise unknown("row for --order", name, layout.rows)
    rows = tuple(sorted(layout.rows, key=lambda row: order.index(row) if row in order else len(order)))
    ranks, blocks = ranking(layout, known[0])
    references = tuple(row for row in rows if not layout.competes(row))
    legend = caption_of(columns, known, wanted, blocks if len(ranks) > 1 else 0, references, names)
    caption, legend = (wanted.caption, legend) if wanted.caption else (legend, "")
    shown_ranks = ranks if len(ranks) > 1 else {}
    return Table(
        rows, columns, shown_ranks, caption, tuple(notes), references, names, wanted.label, legend, wanted.paper
    )


def judged(layout: Arrangement, setting: str, shown: Shown, wanted: Wanted) -> TableColumn:
    """One column with its winner, its ties or neither."""
    runs = {row: layout.runs.get((row, setting), {}) for row in layout.rows}
    values = {row: numbers(of_row, shown) for row, of_row in runs.items()}
    competing = [row for row in layout.rows if values[row] and layout.competes(row)]
    best = max(competing, key=lambda row: signed(shown, values[row]), default=None)
    p_values: dict[str, Figure] = {}
    if best is not None:
        others = [row for row in competing if row != best]
        p_values = statistics.holm({row: compare(runs[best], runs[row], shown, wanted.test) for row in others})
    worse = {row for row, p in p_values.items() if p is not None and p <= wanted.alpha}
    tested = any(p is not None for p in p_values.values())
    cells = {}
    for row in layout.rows:
        mark: Mark = ""
        if tested and row == best:
            mark = "best" if len(worse) == len(p_values) else "tied"
        elif tested and row in p_values and row not in worse:
            mark = "tied"
        published = wanted.published.get((row, setting, shown.name))
        outdated = sum(runs[row][seed].outdated for seed in values[row])
        cells[row] = Cell(values[row], mark, p_values.get(row), published, outdated)
    return TableColumn(setting, shown, cells)


def numbers(runs: dict[int, Record], shown: Shown) -> dict[int, float]:
    """The figure by seed, of the runs that have it."""
    found = {seed: run.figure(shown.path) for seed, run in sorted(runs.items())}
    return {seed: value for seed, value in found.items() if value is not None}


def signed(shown: Shown, values: dict[int, float]) -> float:
    """The mean, with its sign changed if lower is better."""
    average = statistics.mean(list(values.values())) or 0.0
    return average if shown.higher_is_better else -average


def compare(best: dict[int, Record], other: dict[int, Record], shown: Shown, test: statistics.Test) -> Figure:
    """The p-value of a paired test over the seeds at which both have the same scene."""
    pairs = paired(best, other, shown)
    return statistics.paired_p([first for first, _ in pairs], [second for _, second in pairs], test)


def ranking(layout: Arrangement, shown: Shown) -> tuple[dict[str, float], int]:
    """Average ranks over the (setting, seed) pairs in which every competing row has a value, and how many there are."""
    rows = [row for row in layout.rows if layout.competes(row)]
    blocks = []
    for setting in layout.columns:
        values = {row: numbers(layout.runs.get((row, setting), {}), shown) for row in rows}
        seeds = {seed for of_row in values.values() for seed in of_row}
        blocks += [
            {row: values[row][seed] for row in rows}
            for seed in sorted(seeds)
            if all(seed in of_row for of_row in values.values())
        ]
    return statistics.average_ranks(blocks, higher_is_better=shown.higher_is_better), len(blocks)


def caption_of(
    columns: Sequence[TableColumn],
    shown: Sequence[Shown],
    wanted: Wanted,
    blocks: int,
    references: Sequence[str],
    names: Names,
) -> str:
    """What the numbers are and what the marks mean."""
    counts = sorted({len(cell.values) for column in columns for cell in column.cells.values() if cell.values})
    picks = [figure for figure in shown if figure.name in PICKS]
    what = f"{wanted.score.replace('_', ' ').capitalize()} on the test part (%), mean" if picks else "Mean"
    seeds = (
        f"n = {counts[0]} seed{'s' * (counts[0] > 1)}" if len(counts) == 1 else f"n = {counts[0]} to {counts[-1]} seeds"
    )
    sentences = [f"{what} ± sample standard deviation over {seeds}."]
    sentences += (
        [". ".join(filter(None, (figure.meaning for figure in shown))) + "."] if any(f.meaning for f in shown) else []
    )
    if counts[-1] < 2:
        sentences.append("One seed: no test is possible and nothing is bold.")
    else:
        sentences += test_words(counts[-1], wanted)
    if blocks:
        sentences.append(
            f"Rank: average over {blocks} {'pair' if blocks == 1 else 'pairs'} of setting and seed, by "
            f"{names.figure(shown[0])}."
        )
    if references:
        sentences.append(
            f"Out of competition (sees the truth, or is not federated): {', '.join(map(names.row, references))}."
        )
    return " ".join(sentences)


def test_words(most: int, wanted: Wanted) -> list[str]:
    """How the winner was found, and whether there are enough seeds to find one."""
    name = statistics.TESTS[wanted.test]
    words = [
        f"Bold: better than every other row of the column by a {name} over seeds (two-sided, Holm-corrected, "
        f"alpha {wanted.alpha:g}). ≈: not told apart from the best of the column."
    ]
    if statistics.smallest_p(most, wanted.test) > wanted.alpha:
        words.append(f"With {most} seeds this test cannot reach alpha, so nothing is bold; use more seeds.")
    return words


def unfinished(records: Sequence[Record]) -> list[str]:
    """A note on the runs that do not count."""
    broken = [f"{record.folder} ({record.summary['status']})" for record in records if not record.finished]
    return [f"Not finished, so not counted: {', '.join(broken)}."] if broken else []


def absent(shown: Sequence[Shown], known: Sequence[Shown], done: Sequence[Record]) -> list[str]:
    """A note on figures that no run has; not on validation, which is shown by default and needs a hold-out."""
    missing = [figure for figure in shown if figure not in known and figure.name != "validation"]
    return [f"No run has {', '.join(figure.title for figure in missing)}.{meant(missing, done)}"] if missing else []


def meant(missing: Sequence[Shown], done: Sequence[Record]) -> str:
    """Guesses for dotted names that no run has; short names were checked before."""
    return "".join(guess(figure.path, done[0].figures) for figure in missing if figure.name == figure.path)


def unpaired(layout: Arrangement) -> list[str]:
    """Notes on seeds whose runs in one column have different scenes, so that their values are not compared."""
    found = []
    for setting in layout.columns:
        scenes: dict[int, dict[str, list[str]]] = {}
        for (row, column), runs in layout.runs.items():
            for seed, run in runs.items() if column == setting else ():
                scenes.setdefault(seed, {}).setdefault(run.scene, []).append(row)
        found += [
            f"NOT PAIRED, {layout.names.column(setting)}, seed {seed}: different scenes ("
            + "; ".join(
                f"{', '.join(sorted(map(layout.names.row, rows)))}: {scene[:8]}"
                for scene, rows in sorted(by_scene.items())
            )
            + ")."
            for seed, by_scene in sorted(scenes.items())
            if len(by_scene) > 1
        ]
    return found
