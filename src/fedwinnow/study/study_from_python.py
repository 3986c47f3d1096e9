"""Studies from Python: the same names and defaults as the command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

from fedwinnow.errors import UsageError
from fedwinnow.study.statistics import Test
from fedwinnow.study.table import Table, Wanted, make_table
from fedwinnow.study.table_figures import Score

if TYPE_CHECKING:
    from fedwinnow.experiment.settings import Settings
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


def sweep(
    methods: Sequence[str | Mapping[str, Any]] = ("fedavg",),
    *,
    scenes: Sequence[Mapping[str, Any]] = (),
    seeds: int | Sequence[int] = 3,
    out: str | Path = "sweeps/sweep",
    jobs: int = 1,
    engine: str = "loky",
    backend: str = "serial",
    device: str | None = None,
    redo: bool | Literal["all", "stale"] = False,
    checkpoint_every: int = 1,
    on_client_error: Literal["stop", "drop"] = "stop",
    quorum: float = 0.5,
    track: str | None = None,
    **settings: Unpack[Settings],
) -> Swept:
    """Run every method on every scene with every seed; what is finished is skipped, what is broken resumed.

    The names and defaults are those of the command `fedwinnow sweep`:

        swept = fedwinnow.sweep(["fedavg", "feddiv"], scenes=[{"noise": "constant:rate=0.4"}], seeds=3, rounds=5)
        print(swept.failed, swept.table(show="last10,auroc"))

    A method is a spec, or a dictionary with settings of its own and a `name`; a scene is a dictionary of settings
    (partition, noise, data ...). `seeds` is a number (3: the seeds 0, 1 and 2) or the seeds themselves. `settings` hold
    for all runs and are those of `fedwinnow.run`, which explains them. At one seed every method meets the same scene
    and the same first weights. `jobs` runs go at a time, on this machine or where `engine` says. A failing run does
    not stop the others: see `failed` of what is given back. A run that was made of other code or data than there is
    now is in `stale`, and not in its table; redo="stale" plays those anew, redo=True all of them.
    """
    from fedwinnow.experiment.identity import redo_of
    from fedwinnow.experiment.play import Execution
    from fedwinnow.federation.rounds import Faults
    from fedwinnow.study.engine import make_engine
    from fedwinnow.study.sweep import Work, run_plan

    faults = Faults(on_client_error, quorum)
    execution = Execution(backend, device, True, checkpoint_every, faults, redo=redo_of(redo))
    plan = plan_of(methods, scenes, seeds, Path(out).absolute(), settings)
    return run_plan(plan, make_engine(engine, jobs), Work(execution, track))


def plan_of(
    methods: Sequence[str | Mapping[str, Any]],
    scenes: Sequence[Mapping[str, Any]],
    seeds: int | Sequence[int],
    out: Path,
    settings: Settings,
) -> Plan:
    """The plan of a sweep; one method or one seed for all runs would be overruled by the lists without a word."""
    from fedwinnow.study.sweep_plan import make_plan, variants

    for one, several in (("method", "methods"), ("seed", "seeds")):
        if one in settings:
            raise UsageError(f"{one}= was given to a sweep; allowed: {several}=, which takes several.")
    return make_plan(
        out,
        variants(methods, "method", "method"),
        variants(scenes or [{"name": "scene"}], "scene", "scene"),
        range(seeds) if isinstance(seeds, int) else seeds,
        dict(settings),
    )
