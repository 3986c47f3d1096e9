"""Studies from Python: the same names and defaults as the command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedwinnow.errors import UsageError
from fedwinnow.experiment.run_settings import in_groups
from fedwinnow.experiment.settings import Experiment
from fedwinnow.setting import keywords_of, setting, settings_in
from fedwinnow.study.statistics import Test
from fedwinnow.study.sweep_settings import SweepSettings
from fedwinnow.study.table import Table, Wanted, make_table
from fedwinnow.study.table_figures import Score

if TYPE_CHECKING:
    from fedwinnow.study.sweep import Swept
    from fedwinnow.study.sweep_plan import Plan


def table(
    *folders: str | Path | Iterable[str | Path],
    show: str = "last10,last,best,validation",
    score: Score = "accuracy",
    rows: Sequence[str] = ("method",),
    columns: Sequence[str] | None = None,
    test: Test = "t",
    alpha: float = 0.05,
    against: str | None = None,
) -> Table:
    """A table of every run in these folders; `str(table)` is Markdown, `table.save("table.tex")` writes a file.

    The names and defaults are those of the command `fedwinnow table`:

        fedwinnow.table("sweeps/first", show="last10,auroc", score="balanced_accuracy").save("table.tex")

    A folder that holds run folders stands for all of them. `show` names figures of summary.json, `rows` and `columns`
    the settings that make a row and a column (columns=None: those that differ). The best of a column is bold only
    where a paired `test` over seeds ("t" or "wilcoxon"), corrected after Holm, stays below `alpha` against every other.
    `against` names a row that is compared with each of the others over all columns.
    """
    places: list[str | Path] = []
    for folder in folders:
        places += [folder] if isinstance(folder, str | Path) else folder
    return make_table(places, Wanted(show, score, rows, columns, test, alpha, against))


@dataclass(frozen=True)
class SweepKeywords(SweepSettings):
    """The settings of a sweep as a program gives them."""

    methods: Sequence[str | Mapping[str, Any]] = setting(
        ("fedavg",), "The methods: a spec each, or a dictionary with settings of its own and a `name`."
    )
    _: KW_ONLY
    scenes: Sequence[Mapping[str, Any]] = setting(
        (), "The scenes: a dictionary of settings each (partition, noise, data ...)."
    )
    seeds: int | Sequence[int] = setting(3, "The seeds, or how many: 3 are the seeds 0, 1 and 2.")


ALWAYS = ("resume",)  # a sweep continues what it finds


@keywords_of(SweepKeywords, in_groups(SweepKeywords, ("method", "seed", *ALWAYS)), ALWAYS)
def sweep(asked: SweepKeywords, given: Mapping[str, Any]) -> Swept:
    """Run every method on every scene with every seed; what is finished is skipped, what is broken resumed.

    The names and defaults are those of the command `fedwinnow sweep`:

        swept = fedwinnow.sweep(["fedavg", "feddiv"], scenes=[{"noise": "constant:rate=0.4"}], seeds=3, rounds=5)
        print(swept.failed, swept.table(show="last10,auroc"))

    The settings of a run hold for all runs of the sweep; `fedwinnow.run` explains them. At one seed every method meets
    the same scene and the same first weights. A failing run does not stop the others: see `failed` of what is given
    back. A run that was made of other code or data than there is now is in `stale`, and not in its table; redo="stale"
    plays those anew, redo=True all of them.
    """
    from fedwinnow.study.engine import make_engine
    from fedwinnow.study.sweep import Work, run_plan

    for one, several in (("method", "methods"), ("seed", "seeds")):
        if one in given:
            raise UsageError(f"{one}= was given to a sweep; allowed: {several}=, which takes several.")
    work = Work(asked.execution(), asked.track)
    settings = {name: value for name, value in given.items() if name in settings_in(Experiment)}
    return run_plan(plan_of(asked, settings), make_engine(asked.engine, asked.jobs), work)


def plan_of(asked: SweepKeywords, settings: dict[str, Any]) -> Plan:
    """The plan of a sweep, with settings that hold for all its runs."""
    from fedwinnow.study.sweep_plan import make_plan, variants

    return make_plan(
        asked.sweep_folder(),
        variants(asked.methods, "method", "method"),
        variants(asked.scenes or [{"name": "scene"}], "scene", "scene"),
        range(asked.seeds) if isinstance(asked.seeds, int) else asked.seeds,
        settings,
    )
