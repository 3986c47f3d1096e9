"""`fedwinnow paper`: every table of the five papers, by name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from fedwinnow.commands.common import Flags, escaped
from fedwinnow.errors import UsageError
from fedwinnow.setting import same
from fedwinnow.study.sweep_settings import SweepSettings

if TYPE_CHECKING:
    from rich.console import Console

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
class Chosen(Flags):
    """A recipe and its runs: the flags that `run` and `table` share."""

    name: Name = ""
    """A name from `fedwinnow paper list`, for example feddiv-table-1."""
    scale: Literal["laptop", "paper"] = "laptop"
    """The paper's exact setting, which needs a big machine, or a miniature for a laptop."""
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
        from fedwinnow.study.recipes import find_recipe

        if not self.name:
            raise UsageError("no recipe was given; allowed: a name from `fedwinnow paper list`.")
        return find_recipe(self.name)

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

    jobs: int = same(SweepSettings, "jobs")
    engine: str = same(SweepSettings, "engine")
    device: str | None = same(SweepSettings, "device")
    redo: Literal["all", "stale"] | None = same(
        SweepSettings,
        "redo",
        "Start all runs anew; stale: those that were made of other code or data.",
    )
    plan: bool = False
    """Only print what would be run, and how many hours it would take."""

    def run(self) -> int:
        """Print what will be run, then run it."""
        from fedwinnow.commands.sweep import carry_out, planned
        from fedwinnow.experiment.play import Execution
        from fedwinnow.study.engine import make_engine
        from fedwinnow.study.sweep import Work

        plan, engine = self.make_plan(), make_engine(self.engine, self.jobs)
        plan.check()
        self.announce(plan, self.console())
        if self.plan:
            self.emit(planned(plan))
            return 0
        work = Work(Execution(device=self.device, resume=True, redo=self.redo))
        return carry_out(self, plan, engine, work, f"paper table {self.name} --scale {self.scale}")

    def announce(self, plan: Plan, console: Console) -> None:
        """Print the recipe, how it differs from the paper, and what it costs."""
        from fedwinnow.experiment.time_estimate import in_words
        from fedwinnow.study.plan_cost import estimated_hours
        from fedwinnow.study.sweep import states_of

        recipe, states = self.recipe(), states_of(plan)
        if console.quiet:
            return
        console.print(recipe.title, style="bold", markup=False)
        if self.scale == "laptop":
            console.print("a miniature, not the paper's setting:")
            for change in recipe.book["changed"]:
                console.print(f"  - {change}", markup=False)
        for words in recipe.book["says"]:
            console.print(f"note: {words}", markup=False)
        if recipe.missing:
            console.print(f"not in this version: {', '.join(recipe.missing)}", markup=False)
        stale = f", {states['stale']} stale" if states["stale"] else ""
        counts = f"{len(plan.jobs)} runs: {states['finished']} finished, {states['broken']} to continue{stale}"
        console.print(f"{counts}, in {plan.out}", markup=False)
        hours = estimated_hours(plan, self.device, self.redo)
        if hours is not None:
            cost = f"{in_words(3600 * hours)} of training on this machine, one run at a time"
            console.print(f"{cost}, if every method costs what FedAvg does")


@dataclass(frozen=True)
class PaperTable(Chosen):
    """The table of a recipe from its runs, with the paper's numbers beside ours; cells without a run are empty."""

    test: Literal["t", "wilcoxon"] = "t"
    """The paired test over seeds."""
    alpha: float = 0.05
    """The largest corrected p-value with which a difference counts."""
    format: Literal["terminal", "markdown", "latex", "csv"] = "terminal"
    """What to print."""
    out: Path | None = None
    """Write a file instead; it ends in .md, .tex, .csv or .json."""

    def run(self) -> int:
        """Read the runs, print or write the table."""
        import dataclasses

        from fedwinnow.commands.table import present
        from fedwinnow.study.recipe_table import recipe_table

        made = recipe_table(
            self.recipe(), self.make_plan(), self.scale, self.columns, self.test, self.alpha, chosen=self.methods
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
