"""Studies from Python: the same names and defaults as the command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedwinnow.study.names import Score
from fedwinnow.study.statistics import Test
from fedwinnow.study.table import Table, Wanted, make_table

if TYPE_CHECKING:
    from fedwinnow.study.sweep import Swept


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
    checkpoint_every: int = 1,
    track: str | None = None,
    **settings: Any,
) -> Swept:
    """Run every method on every scene with every seed; what is finished is skipped, what is broken resumed.

    `settings` hold for all runs and are those of `fedwinnow.run`. A scene is a dictionary of settings (partition,
    noise, data ...); a method is a spec, or a dictionary with settings of its own. A failing run does not stop the
    others: see `failed` of what is given back.
    """
    from fedwinnow.experiment.play import Manner
    from fedwinnow.study.engine import make_engine
    from fedwinnow.study.plan import make_plan, variants
    from fedwinnow.study.sweep import Work, run_plan

    plan = make_plan(
        Path(out).absolute(),
        variants(methods, "method", "method"),
        variants(scenes or [{"name": "scene"}], "scene", "scene"),
        range(seeds) if isinstance(seeds, int) else seeds,
        settings,
    )
    manner = Manner(backend, device, True, checkpoint_every)
    return run_plan(plan, make_engine(engine, jobs), Work(manner, track))
