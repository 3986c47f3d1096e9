"""`fedwinnow paper`: every table of the five papers, by name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from fedwinnow.commands.common import Flags, escaped
from fedwinnow.errors import UsageError
from fedwinnow.setting import same
from fedwinnow.study.sweep_settings import SweepSettings

if TYPE_CHECKING:
    from rich.console import Console

    from fedwinnow.study.plan_cost import PlanCost
    from fedwinnow.study.recipe_table import Style
    from fedwinnow.study.recipes import Recipe
    from fedwinnow.study.sweep_plan import Plan

Name = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]


@dataclass(frozen=True)
class PaperList(Flags):
    """The recipes: every table of the papers, with its size and the methods that fedwinnow does not have."""

    def run(self) -> int:
        """One line each."""
        from fedwinnow.study.recipes import recipes
        from fedwinnow.terminal import Grid

        rows, values = [], []
        for name, recipe in recipes().items():
            counts = (len(recipe.rows), len(recipe.settings))
            missing = escaped(", ".join(recipe.missing))
            rows.append((f"[bold]{name}[/]", escaped(recipe.title), *map(str, counts), missing))
            value = {"name": name, "title": recipe.title, "rows": recipe.rows, "missing": recipe.missing}
            values.append({**value, "columns": [recipe.label(setting) for setting in recipe.settings]})
        self.emit(values)
        Grid("wtnnt", ("name", "table", "rows", "columns", "not in this version"), rows).show(self.console())
        return 0


@dataclass(frozen=True)
class Printed(Flags):
    """How a table is printed: the flags that `show` and `table` share."""

    rename: tuple[str, ...] = ()
    """Other names for rows, columns or figures, as old=new: feddiv=Ours."""
    caption: str = ""
    """A caption of your own."""
    label: str = ""
    """LaTeX: the label, such as tab:results. The table needs the package booktabs."""
    format: Literal["terminal", "markdown", "latex", "csv"] = "terminal"
    """What to print."""
    out: Path | None = None
    """Write a file instead; it ends in .md, .tex, .csv or .json."""

    def style(self) -> Style:
        """Names, caption and label."""
        from fedwinnow.study.recipe_table import Style
        from fedwinnow.study.table_names import parsed_names

        return Style(parsed_names(self.rename), self.caption, self.label)


@dataclass(frozen=True)
class PaperShow(Printed):
    """The table as the paper prints it; nothing is run and no data is needed."""

    name: Name = ""
    """A name from `fedwinnow paper list`, for example feddiv-table-1."""
    methods: tuple[str, ...] = ()
    """Only these rows, by name."""
    columns: tuple[str, ...] = ()
    """Only the columns whose name contains one of these words."""

    def run(self) -> int:
        """Print or write the table."""
        from fedwinnow.commands.table import present
        from fedwinnow.study.recipe_table import published_table

        made = published_table(wanted_recipe(self.name), self.methods, self.columns, self.style())
        present(self, made, self.format, self.out)
        return 0


def wanted_recipe(name: str) -> Recipe:
    """The recipe of this name."""
    from fedwinnow.study.recipes import find_recipe

    if not name:
        raise UsageError("no recipe was given; allowed: a name from `fedwinnow paper list`.")
    return find_recipe(name)


@dataclass(frozen=True)
class Chosen(Flags):
    """A recipe and its runs: the flags that `run` and `table` share."""

    name: Name = ""
    """A name from `fedwinnow paper list`, for example feddiv-table-1."""
    scale: Literal["laptop", "features", "paper"] = "laptop"
    """A miniature for a laptop; the full data on frozen features; or the paper's exact setting, on a big machine."""
    runs: Path | None = None
    """The folder of the runs; none: papers/<name>-<scale>."""
    methods: tuple[str, ...] = ()
    """Only these rows of the paper's table, by name."""
    also: tuple[str, ...] = ()
    """Further methods, which the paper's table does not have, for example oracle fedgr:preset=code."""
    columns: tuple[str, ...] = ()
    """Only the columns whose name contains one of these words."""
    seeds: tuple[int, ...] = ()
    """The seeds; none: those of the recipe."""
    set: tuple[str, ...] = ()
    """Changes for every run, as key=value: rounds=5 data=digits model=resnet18:weights=FILE."""

    def recipe(self) -> Recipe:
        """The recipe of this name."""
        return wanted_recipe(self.name)

    def make_plan(self) -> Plan:
        """The runs of the recipe."""
        from fedwinnow.study.recipe_table import default_folder

        recipe = self.recipe()
        out = (self.runs or default_folder(recipe, self.scale)).absolute()
        return recipe.plan(
            out,
            self.scale,
            rows=self.methods,
            also=self.also,
            columns=self.columns,
            seeds=self.seeds,
            changes=parsed_changes(self.set),
        )


@dataclass(frozen=True)
class PaperRun(Chosen):
    """Run a recipe; the same command again skips finished runs and resumes the others."""

    jobs: int | Literal["auto"] = same(SweepSettings, "jobs")
    engine: str = same(SweepSettings, "engine")
    device: str | None = same(SweepSettings, "device")
    redo: Literal["all", "stale"] | None = same(
        SweepSettings,
        "redo",
        "Start all runs anew; stale: those that were made of other code or data.",
    )
    plan: bool = False
    """Only print rows, columns, what would be run, and how long it would take."""

    def run(self) -> int:
        """Print what will be run, then run it."""
        import sys

        from fedwinnow.commands.sweep import carry_out, planned
        from fedwinnow.experiment.play import Execution
        from fedwinnow.experiment.time_estimate import WORTH
        from fedwinnow.study.engine import make_engine
        from fedwinnow.study.plan_cost import cost_of
        from fedwinnow.study.sweep import Work
        from fedwinnow.study.sweep_data import data_to_come, without_data

        plan, engine = self.make_plan(), make_engine(self.engine, self.jobs, self.device)
        plan.check()
        # Workers of a cluster may have data that this machine lacks.
        playable, lacking, coming = plan, "", ""
        if not engine.has_workers and self.plan:
            playable, lacking, coming = data_to_come(plan, self.redo)
        elif not engine.has_workers:
            playable, lacking = without_data(plan, self.redo)
        cost = cost_of(plan, self.device, self.redo)
        if self.jobs == "auto" and cost.seconds is not None and cost.seconds <= WORTH:
            engine = replace(engine, jobs=1)  # processes take seconds to start
        self.announce(plan, cost, self.console())
        if self.plan:
            columns = self.recipe().column_words()
            self.emit({"rows": [vars(row) for row in cost.rows], "columns": columns, "runs": planned(plan)})
        if coming:
            print(f"note: {coming}", file=sys.stderr)
        if lacking:
            print(f"{'note' if self.plan else 'error'}: {lacking}", file=sys.stderr)
        if self.plan:
            return 0
        if not playable.jobs:
            return 3
        work = Work(Execution(device=self.device, resume=True, redo=self.redo))
        code = carry_out(self, playable, engine, work, f"paper table {self.name} --scale {self.scale}")
        return code or (3 if lacking else 0)

    def announce(self, plan: Plan, cost: PlanCost, console: Console) -> None:
        """Print the recipe, how it differs from the paper, and what it costs."""
        from fedwinnow.study.recipe_table import ON_FEATURES
        from fedwinnow.study.sweep import states_of

        recipe, states = self.recipe(), states_of(plan)
        if console.quiet:
            return
        console.print(recipe.title, style="bold", markup=False)
        if self.scale == "laptop":
            console.print("a miniature, not the paper's setting:")
            for change in recipe.book["changed"]:
                console.print(f"  - {change}", markup=False)
        if self.scale == "features":
            console.print(ON_FEATURES, markup=False)
        for words in recipe.book["says"]:
            console.print(f"note: {words}", markup=False)
        if recipe.missing:
            console.print(f"not in this version: {', '.join(recipe.missing)}", markup=False)
        if self.plan:
            self.list_columns(plan, recipe, console)
            list_rows(cost, console)
        stale = f", {states['stale']} stale" if states["stale"] else ""
        counts = f"{len(plan.jobs)} runs: {states['finished']} finished, {states['broken']} to continue{stale}"
        console.print(f"{counts}, in {plan.out}", markup=False)
        tell_time(cost, console, explain=self.plan)

    def list_columns(self, plan: Plan, recipe: Recipe, console: Console) -> None:
        """Every column with its scene in words, its data and the number of its runs."""
        from fedwinnow.terminal import Grid

        words = recipe.column_words()
        rows = []
        for column in dict.fromkeys(job.scene for job in plan.jobs):
            jobs = [job for job in plan.jobs if job.scene == column]
            data = ", ".join(dict.fromkeys(str(job.experiment.data) for job in jobs))
            sizes = {(job.experiment.clients, job.experiment.rounds) for job in jobs}
            sites = " or ".join(f"{clients} x {rounds}" for clients, rounds in sorted(sizes))
            rows.append((escaped(column), escaped(words[column]), escaped(data), sites, str(len(jobs))))
        Grid("ttttn", ("column", "in words", "data", "sites x rounds", "runs"), rows).show(console)
        console.print()


def list_rows(cost: PlanCost, console: Console) -> None:
    """Every row with its columns, the runs that are left and their time."""
    from fedwinnow.experiment.time_estimate import in_words
    from fedwinnow.method_names import title_of
    from fedwinnow.terminal import Grid

    rows = []
    for row in cost.rows:
        each = "not known" if row.seconds is None else in_words(row.seconds)
        whole = "not known" if row.seconds is None else in_words(row.runs * row.seconds) if row.runs else "done"
        rows.append(
            (escaped(row.row), escaped(title_of(row.row)), str(row.columns), str(row.runs), each, whole, row.source)
        )
    heads = ("row", "in print", "columns", "runs left", "time of one", "time of all", "known from")
    Grid("ttnnttt", heads, rows).show(console)
    console.print()


def tell_time(cost: PlanCost, console: Console, *, explain: bool) -> None:
    """Print the time of all runs, and how it was estimated."""
    from fedwinnow.experiment.time_estimate import in_words
    from fedwinnow.study.plan_cost import HOW

    seconds = cost.seconds
    if seconds is not None and any(row.runs for row in cost.rows):
        encoding = f", {in_words(cost.encoding)} of it for encoding the data once" if cost.encoding else ""
        console.print(f"{in_words(seconds)} of training on this machine, one run at a time{encoding}")
    if explain:
        console.print(HOW, style="dim", markup=False)


@dataclass(frozen=True)
class PaperTable(Printed, Chosen):
    """The table of a recipe from its runs, with the paper's numbers beside ours; cells without a run are empty."""

    test: Literal["t", "wilcoxon"] = "t"
    """The paired test over seeds."""
    alpha: float = 0.05
    """The largest corrected p-value with which a difference counts."""

    def run(self) -> int:
        """Read the runs, print or write the table."""
        import dataclasses

        from fedwinnow.commands.table import present
        from fedwinnow.study.recipe_table import recipe_table

        made = recipe_table(
            self.recipe(),
            self.make_plan(),
            self.scale,
            self.columns,
            self.test,
            self.alpha,
            chosen=self.methods,
            style=self.style(),
        )
        if self.set:
            made = dataclasses.replace(made, notes=(f"CHANGED for every run: {', '.join(self.set)}.", *made.notes))
        present(self, made, self.format, self.out)
        return 0


def parsed_changes(words: tuple[str, ...]) -> dict[str, Any]:
    """key=value as settings of the right type."""
    from typing import get_type_hints

    from fedwinnow.commands.run import Run
    from fedwinnow.errors import unknown
    from fedwinnow.options import convert
    from fedwinnow.study.sweep_plan import SETTINGS

    hints = {name: hint for name, hint in get_type_hints(Run).items() if name in SETTINGS}
    found = {}
    for word in words:
        key, equals, value = word.partition("=")
        name = key.strip().replace("-", "_")
        if not equals:
            raise UsageError(f"--set {word} was given; allowed: key=value.")
        if name not in hints:
            raise unknown("setting", name, hints)
        found[name] = convert(f"--set {name}", value.strip(), hints[name])
    return found
