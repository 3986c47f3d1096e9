"""Studies from Python: the same names and defaults as the command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedwinnow.errors import UsageError, speaks_python
from fedwinnow.experiment.handed_over import ONLY_HERE, HandedOver, method_with, plain_settings
from fedwinnow.experiment.run_settings import in_groups
from fedwinnow.experiment.settings import Experiment
from fedwinnow.experiment.time_estimate import in_words
from fedwinnow.federation.method import Method
from fedwinnow.notebook import line_of_text
from fedwinnow.python_words import in_python
from fedwinnow.scene.scene import Scene
from fedwinnow.setting import keywords_of, setting, settings_in
from fedwinnow.study.statistics import Test
from fedwinnow.study.sweep_settings import SweepSettings
from fedwinnow.study.table import Table, Wanted, make_table
from fedwinnow.study.table_figures import Score

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedwinnow.study.sweep import Clock, Outcome, Swept
    from fedwinnow.study.sweep_plan import Plan


@speaks_python
def table(
    *folders: str | Path | Iterable[str | Path],
    show: str = "last10,last,best,validation",
    score: Score = "accuracy",
    rows: Sequence[str] = ("method",),
    columns: Sequence[str] | None = None,
    test: Test = "t",
    alpha: float = 0.05,
    against: str | None = None,
    order: Sequence[str] = (),
    rename: Mapping[str, str] | None = None,
    caption: str = "",
    label: str = "",
) -> Table:
    """A table of every run in these folders; `str(table)` is Markdown, `table.save("table.tex")` writes a file.

    The names and defaults are those of the command `fedwinnow table`:

        fedwinnow.table("sweeps/first", show="last10,auroc", score="balanced_accuracy").save("table.tex")

    A folder that holds run folders stands for all of them. `show` names figures of summary.json, `rows` and `columns`
    the settings that make a row and a column (columns=None: those that differ). The best of a column is bold only
    where a paired `test` over seeds ("t" or "wilcoxon"), corrected after Holm, stays below `alpha` against every other.
    `against` names a row that is compared with each of the others over all columns.
    `order` names rows that come first, `rename` gives rows, columns or figures other names ({"feddiv": "Ours"}).
    `caption` and `label` are for LaTeX, which uses booktabs.
    """
    places: list[str | Path] = []
    for folder in folders:
        places += [folder] if isinstance(folder, str | Path) else folder
    wanted = Wanted(
        show, score, rows, columns, test, alpha, against, order, rename=dict(rename or {}), caption=caption, label=label
    )
    return make_table(places, wanted)


def board(folder: str | Path) -> Path:
    """Write board.html into a folder: one offline page of all runs in it, with curves, filters and means; its path.

        fedwinnow.board("sweeps/first")

    The same runs give the same page; runs that are unfinished, stale or broken are shown as such.
    """
    from fedwinnow.study.board.page import write_board

    return write_board(folder).path


@speaks_python
def figure(name: str, *of: Any, out: str | Path | None = None, **options: Any) -> Figure:
    """A picture as a figure of matplotlib: any that the command `fedwinnow figure` lists, of runs, sweeps or a scene.

        fedwinnow.figure("curves", "sweeps/first", column="macro_f1")
        fedwinnow.figure("rates", scene, out="rates.pdf")

    `of` are a `Scene`, or results, finished sweeps and folders. `out` writes it to a file as well (.png, .svg, .pdf).
    """
    from fedwinnow.study.figures.kept_figure import figure_of

    places = [getattr(one, "folder", None) or getattr(one, "out", one) for one in of]
    one_scene = len(of) == 1 and isinstance(of[0], Scene)
    if not of or any(isinstance(place, Scene) for place in places) != one_scene:
        raise UsageError(
            f"figure({name!r}) was given {len(of)} things; allowed: one Scene, or run folders and results."
        )
    made = figure_of(name, of[0] if one_scene else places, **options)
    if out is not None:
        made.savefig(out, dpi=160)
    return made


@dataclass(frozen=True)
class SweepKeywords(HandedOver, SweepSettings):
    """The settings of a sweep as a program gives them."""

    methods: Sequence[str | Method | type[Method] | Mapping[str, Any]] = setting(
        ("fedavg",),
        "The methods: a spec, a Method object or its class, or a dictionary with settings of its own and a `name`.",
    )
    _: KW_ONLY
    scenes: Sequence[Mapping[str, Any] | Scene] = setting(
        (), "The scenes: a Scene, or a dictionary of settings (partition, noise, data ...) each."
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
    from fedwinnow.study.sweep import Work, run_plan, settled

    for one, several in (("method", "methods"), ("seed", "seeds")):
        if one in given:
            raise UsageError(f"{one}= was given to a sweep; allowed: {several}=, which takes several.")
    work = Work(asked.execution(), asked.track)
    known = {*settings_in(Experiment), *ONLY_HERE}
    settings = {name: value for name, value in given.items() if name in known}
    show = line_of_text(asked.progress)
    tell = {} if show is None else {"tell": lambda outcome, clock: show(progress_of(outcome, clock))}
    plan, engine = plan_of(asked, settings), make_engine(asked.engine, asked.jobs, asked.device, asked.backend)
    engine, _ = settled(plan, engine, asked.jobs, asked.device, asked.anew)
    swept = run_plan(plan, engine, work, **tell)
    return replace(swept, outcomes=tuple(replace(one, message=in_python(one.message)) for one in swept.outcomes))


def progress_of(outcome: Outcome, clock: Clock) -> str:
    """How far a sweep is, in a line."""
    left = clock.seconds_left()
    rest = "" if left is None or clock.done == clock.total else f", {in_words(left)} left"
    return f"run {clock.done} of {clock.total} {outcome.status}: {outcome.job.row}, seed {outcome.job.seed}{rest}"


def plan_of(asked: SweepKeywords, settings: dict[str, Any]) -> Plan:
    """The plan of a sweep, with settings that hold for all its runs."""
    from fedwinnow.study.sweep_plan import make_plan, variants

    loss = settings.pop("loss", None)
    rows = [row_of(one, loss) for one in asked.methods]
    scenes = [scene_of_sweep(one, settings) for one in asked.scenes]
    return make_plan(
        asked.sweep_folder(),
        variants(rows, "method", "method"),
        variants(scenes or [{"name": "scene"}], "scene", "scene"),
        range(asked.seeds) if isinstance(asked.seeds, int) else asked.seeds,
        plain_settings(settings, settings),
    )


def row_of(given: Any, loss: Any) -> Any:
    """A row as a spec or a dictionary of settings; `loss` is that of every row without its own."""
    if isinstance(given, Mapping):
        return plain_settings({"loss": loss, **given}, given)
    if loss is not None or isinstance(given, type):
        given = method_with(given, loss)
    return given if isinstance(given, str) else {"name": str(given), "method": given}


def scene_of_sweep(given: Any, settings: Mapping[str, Any]) -> Any:
    """A scene as a dictionary of settings."""
    if isinstance(given, Scene):
        given = {"scene": given}
    return plain_settings(given, {**settings, **given}) if isinstance(given, Mapping) else given
