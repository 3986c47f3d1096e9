"""`fedwinnow sweep`: methods x scenes x seeds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fedwinnow.commands.common import Flags, escaped
from fedwinnow.commands.run import Run
from fedwinnow.errors import FedwinnowError, UsageError
from fedwinnow.flags import as_flags
from fedwinnow.setting import setting
from fedwinnow.study.sweep_settings import SweepSettings

if TYPE_CHECKING:
    from rich.console import Console

    from fedwinnow.all_settings import Redo
    from fedwinnow.study.engine import Engine
    from fedwinnow.study.sweep import Clock, Outcome, Swept, Work
    from fedwinnow.study.sweep_plan import Plan

STATUSES = ("finished", "skipped", "failed", "stale", "taken")


@as_flags("method", "seed", "resume", "rows", "scenes")
@dataclass(frozen=True)
class Sweep(SweepSettings, Run):
    """Run every method on every scene with every seed; with the same seed, all have the same scene and first weights.

    Give flags, or a TOML file: fedwinnow sweep study.toml. The same command again skips finished runs and resumes the
    others; runs that were made with other code or data than there is now are stale, and stay as they are without
    --redo. Every flag of `run` is allowed, and holds for all runs.
    """

    takes_file: ClassVar[bool] = True

    methods: tuple[str, ...] = setting(
        (), "The methods, separated by spaces: fedavg feddiv fedrn:neighbours=2; none: that of the file, or fedavg."
    )
    partitions: tuple[str, ...] = setting((), "Several partitions; none: the one of --partition.")
    noises: tuple[str, ...] = setting((), "Several noises; none: the one of --noise.")
    seeds: tuple[int, ...] = setting((0, 1, 2), "The seeds.")
    plan: bool = setting(False, "Only say what would be run, and how long it would take.")
    rows: tuple[dict[str, Any], ...] = setting((), "Methods with settings of their own; from a file.")
    scenes: tuple[dict[str, Any], ...] = setting((), "Scenes with settings of their own; from a file.")

    def run(self) -> int:
        """Make the plan, print it, run it, and report."""
        from fedwinnow.study.engine import make_engine
        from fedwinnow.study.sweep import Work, settled

        plan, engine = self.make_plan(), make_engine(self.engine, self.jobs, self.device, self.backend)
        plan.check()
        console = self.console()
        engine, seconds = settled(plan, engine, self.jobs, self.device, self.anew)
        if self.plan:
            return self.show_plan(plan, engine, console, seconds)
        announce(plan, engine, self.device, console, self.anew, seconds)
        work = Work(replace(self.execution(), resume=True), self.track)
        return carry_out(self, plan, engine, work, f"table {plan.out}")

    def make_plan(self) -> Plan:
        """The plan that flags or file describe."""
        from fedwinnow.study.sweep_plan import SETTINGS, Variant, make_plan, variants

        self.refuse_ignored()
        rows = variants([*self.methods, *self.rows] or [self.method], "method", "method")
        if self.scenes:
            scenes = variants(self.scenes, "scene", "scene")
        elif self.scene is not None:
            scenes = [Variant(Path(self.scene).name, {})]
        else:
            pairs = [(p, n) for p in self.partitions or (self.partition,) for n in self.noises or (self.noise,)]
            scenes = [Variant(f"{p}, {n or 'no noise'}", {"partition": p, "noise": n}) for p, n in pairs]
        base = {name: getattr(self, name) for name in SETTINGS}
        return make_plan(self.sweep_folder(), rows, scenes, self.seeds, base)

    def refuse_ignored(self) -> None:
        """Refuse --partitions and --noises where the scenes would override them."""
        self.refuse_beside_scene()
        for name in ("partitions", "noises"):
            if getattr(self, name) and (self.scenes or self.scene is not None):
                raise UsageError(
                    f"--{name} was given together with scenes, which have their own; allowed: one of the two."
                )

    def show_plan(self, plan: Plan, engine: Engine, console: Console, seconds: float | None) -> int:
        """Print every run with its state, and how long the rest takes."""
        from fedwinnow.terminal import Grid

        self.emit(planned(plan))
        rows = [(escaped(job.row), escaped(job.scene), str(job.seed), plan.state(job)) for job in plan.jobs]
        Grid("ttnw", ("method", "scene", "seed", "state"), rows, names=3).show(console)
        announce(plan, engine, self.device, console, self.anew, seconds)
        return 0


def planned(plan: Plan) -> list[dict[str, str]]:
    """Every run of a plan, for JSON."""
    return [{**job.request, "folder": str(job.folder), "state": plan.state(job)} for job in plan.jobs]


def carry_out(flags: Flags, plan: Plan, engine: Engine, work: Work, following: str) -> int:
    """Run a plan and print the outcome; `following` is the command to use next."""
    from fedwinnow.device import choose_device
    from fedwinnow.study.sweep import run_plan

    console = flags.console()
    if not engine.has_workers:  # a cluster's machines have other devices
        choose_device(work.execution.device)
    try:
        swept = run_plan(plan, engine, work, lambda outcome, clock: tell(outcome, clock, console))
    except KeyboardInterrupt:
        console.print("\ninterrupted; the same command continues where it stopped")
        return 130
    flags.emit([outcome.as_value() for outcome in swept.outcomes])
    return report(swept, console, f"fedwinnow {following}")


def announce(
    plan: Plan,
    engine: Engine,
    device: str | None,
    console: Console,
    redo: Redo = None,
    seconds: float | None = None,
) -> None:
    """Print how many runs there are, their states, and how long they will take: `seconds` if that is known already."""
    from fedwinnow.experiment.time_estimate import in_words
    from fedwinnow.study.sweep import estimated_seconds, states_of, to_play

    if console.quiet:
        return
    states = states_of(plan)
    stale = f", {states['stale']} stale" if states["stale"] else ""
    stale += {None: "", "stale": ", which are started again", "all": "; all are started again"}[redo]
    count = [len({getattr(job, name) for job in plan.jobs}) for name in ("row", "scene", "seed")]
    console.print(
        f"{len(plan.jobs)} runs: {count[0]} methods x {count[1]} scenes x {count[2]} seeds; "
        f"{states['finished']} finished, {states['broken']} to continue, "
        f"{states['new']} new{stale}; {engine.pace} ({engine.name}), in {plan.out}",
        markup=False,
    )
    if not to_play(plan, redo):
        return
    try:
        words = in_words(estimated_seconds(plan, engine, device, redo) if seconds is None else seconds)
        console.print(f"[dim]this will take {words} if every method costs what FedAvg does[/]")
    except FedwinnowError as problem:
        console.print(f"no estimate: {problem}", style="dim", markup=False)


def tell(outcome: Outcome, clock: Clock, console: Console) -> None:
    """Print one line for a run that has ended, with the time left."""
    from fedwinnow.experiment.report.templates import percent
    from fedwinnow.experiment.time_estimate import in_words

    job, left = outcome.job, clock.seconds_left()
    if outcome.status in ("taken", "skipped"):
        result = "taken by another process" if outcome.status == "taken" else "finished by another process meanwhile"
    else:
        done = outcome.status == "finished"
        result = percent(outcome.accuracy) if done else f"{outcome.status.upper()}: {outcome.message}"
    time_left = f"; {in_words(left)} left" if left is not None and clock.left else ""
    console.print(
        f"{clock.done}/{clock.total} {job.row} | {job.scene} | seed {job.seed}: {result}, "
        f"{outcome.seconds:.1f} s{time_left}",
        markup=False,
        soft_wrap=True,
    )


def report(swept: Swept, console: Console, following: str) -> int:
    """Print the outcome of the sweep and the next command; returns 4 if a run failed or is stale."""
    import sys

    counts = {name: sum(one.status == name for one in swept.outcomes) for name in STATUSES}
    stale = f", {counts['stale']} stale" if counts["stale"] else ""
    stale += f", {counts['taken']} taken by other processes" if counts["taken"] else ""
    console.print(
        f"{counts['finished']} finished, {counts['skipped']} were finished before, {counts['failed']} failed{stale}; "
        f"now: {following}",
        markup=False,
        soft_wrap=True,
    )
    for outcome in swept.failed:
        job = outcome.job
        print(f"error: {job.row}, {job.scene}, seed {job.seed}: {outcome.message}", file=sys.stderr)
    if swept.stale:
        reasons = "; ".join(dict.fromkeys(outcome.message for outcome in swept.stale))
        print(
            f"error: {counts['stale']} of {len(swept.outcomes)} runs are stale and were not played: {reasons}. "
            "Add --redo stale to play them again, or restore the old code and data.",
            file=sys.stderr,
        )
    return 4 if swept.failed or swept.stale else 0
