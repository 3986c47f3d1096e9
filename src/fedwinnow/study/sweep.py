"""Run a plan: skip finished runs, resume broken ones, and report failures at the end."""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedwinnow.all_settings import Redo
from fedwinnow.device import own_card
from fedwinnow.errors import FedwinnowError, RunError, StaleError, TakenError
from fedwinnow.experiment.play import Execution, play
from fedwinnow.experiment.time_estimate import WORTH
from fedwinnow.experiment.trackers.tracker import make_trackers
from fedwinnow.notebook import html_table
from fedwinnow.study.engine import Engine
from fedwinnow.study.sweep_plan import Job, Plan, State
from fedwinnow.study.table import Table, Wanted, make_table


@dataclass(frozen=True)
class Outcome:
    """The outcome of one job."""

    job: Job
    status: str  # skipped, finished, failed, stale, or taken: another process is playing it
    seconds: float = 0.0
    accuracy: float | None = None
    message: str = ""

    def as_value(self) -> dict[str, Any]:
        """The outcome as a dictionary for JSON."""
        job = self.job
        value = {"row": job.row, "scene": job.scene, "seed": job.seed, "folder": str(job.folder), "status": self.status}
        return {**value, "seconds": round(self.seconds, 3), "accuracy": self.accuracy, "message": self.message or None}


@dataclass(frozen=True)
class Swept:
    """A finished sweep."""

    out: Path
    outcomes: tuple[Outcome, ...]

    @property
    def failed(self) -> tuple[Outcome, ...]:
        """The runs that failed, with the reason."""
        return tuple(outcome for outcome in self.outcomes if outcome.status == "failed")

    @property
    def stale(self) -> tuple[Outcome, ...]:
        """The runs that were made with other code or data than there is now."""
        return tuple(outcome for outcome in self.outcomes if outcome.status == "stale")

    @property
    def taken(self) -> tuple[Outcome, ...]:
        """The runs that another process was playing."""
        return tuple(outcome for outcome in self.outcomes if outcome.status == "taken")

    def __repr__(self) -> str:
        counts = Counter(outcome.status for outcome in self.outcomes)
        return f"Swept({str(self.out)!r}: {', '.join(f'{count} {status}' for status, count in counts.items())})"

    def _repr_html_(self) -> str:
        """For notebooks: the table of the runs, and what went wrong."""
        bad = [
            (one.job.row, one.job.scene, one.job.seed, one.status, one.message)
            for one in (*self.failed, *self.stale, *self.taken)
        ]
        problems = html_table(("row", "scene", "seed", "", "why"), bad) if bad else ""
        whole = len(bad) < len(self.outcomes)
        return (self.table()._repr_html_() if whole else "") + problems

    def table(self, **options: Any) -> Table:
        """The runs as a table, without failed, stale and taken ones; the options are those of `fedwinnow.table`."""
        folders = [outcome.job.folder for outcome in self.outcomes if outcome.status in ("finished", "skipped")]
        if not folders:
            first = (*self.failed, *self.stale, *self.taken)[0]
            raise RunError(f"all {len(self.outcomes)} runs failed, are stale or taken; the first: {first.message}")
        return make_table(folders, Wanted(**options))


@dataclass(frozen=True)
class Work:
    """Plays one job; it is sent to the process that plays."""

    execution: Execution
    track: str | Sequence[str] | None = None
    apart: bool = False  # several runs at a time: each process takes a GPU of its own, where there are several

    def __call__(self, job: Job) -> tuple[str, float, float | None, str]:
        """Status, seconds, accuracy and message; an error is a result, so that the other jobs go on."""
        began, story = time.perf_counter(), job.folder / "error.txt"
        if self.execution.anew is None and job.state() == "finished":  # by another process, since the sweep began
            return "skipped", 0.0, None, ""
        try:
            execution = (
                replace(self.execution, device=own_card(self.execution.device)) if self.apart else self.execution
            )
            summary = play(job.experiment, job.folder, execution, make_trackers(self.track, job.folder))
            story.unlink(missing_ok=True)  # of an earlier attempt
            return "finished", time.perf_counter() - began, summary["last10"]["accuracy"], ""
        except TakenError as problem:
            return "taken", time.perf_counter() - began, None, str(problem)
        except StaleError as problem:  # code or data changed while the sweep ran
            return "stale", time.perf_counter() - began, None, str(problem)
        except FedwinnowError as problem:
            return "failed", time.perf_counter() - began, None, str(problem)
        except Exception as problem:
            # A bug in a user's method must not end the sweep; error.txt in the run's folder has the stack trace.
            story.parent.mkdir(parents=True, exist_ok=True)
            story.write_text(traceback.format_exc(), encoding="utf-8")
            text = f"{type(problem).__name__}: {problem} (see {story})"
            return "failed", time.perf_counter() - began, None, text


def run_plan(
    plan: Plan, engine: Engine, work: Work, tell: Callable[[Outcome, Clock], None] = lambda outcome, clock: None
) -> Swept:
    """Play the runs of a plan that are left; `tell` is called after every run."""
    plan.check()
    plan.write_book()
    left = to_play(plan, work.execution.anew)
    played = {job.folder for job in left}
    outcomes = {job.folder: skipped_or_stale(plan, job) for job in plan.jobs if job.folder not in played}
    clock = Clock(left, engine.jobs)
    work = replace(work, apart=engine.several, execution=replace(work.execution, backend=engine.backend))
    for place, (status, seconds, accuracy, message) in engine.map(work, left):
        outcome = Outcome(left[place], status, seconds, accuracy, message)
        outcomes[outcome.job.folder] = outcome
        clock.note(outcome)
        tell(outcome, clock)
    return Swept(plan.out, tuple(outcomes[job.folder] for job in plan.jobs))


def to_play(plan: Plan, redo: Redo = None) -> list[Job]:
    """The runs to play: new and broken ones, stale ones with redo="stale", all with redo="all"."""
    wanted = {"new", "broken"} | ({"stale"} if redo == "stale" else set())
    return [job for job in plan.jobs if redo == "all" or plan.state(job) in wanted]


def skipped_or_stale(plan: Plan, job: Job) -> Outcome:
    """The outcome of a job that is not played."""
    reason = plan.why_stale(job)
    return Outcome(job, "skipped") if reason is None else Outcome(job, "stale", message=reason)


class Clock:
    """How many runs are done, and how long the rest will take, judged by the runs so far."""

    def __init__(self, left: Sequence[Job], jobs: int) -> None:
        self.total, self.jobs = len(left), jobs
        self.left = {job.folder: job for job in left}
        self.times: list[tuple[Job, float]] = []

    def note(self, outcome: Outcome) -> None:
        """Count a run that has ended."""
        del self.left[outcome.job.folder]
        if outcome.status == "finished":
            self.times.append((outcome.job, outcome.seconds))

    @property
    def done(self) -> int:
        """How many runs of this sweep have ended."""
        return self.total - len(self.left)

    def seconds_left(self) -> float | None:
        """The expected seconds of all runs that are left, divided by the number of processes."""
        if not self.times:
            return None
        return float(sum(self.expected(job) for job in self.left.values())) / min(self.jobs, max(len(self.left), 1))

    def expected(self, job: Job) -> float:
        """The mean seconds of the most similar runs: same row and scene, otherwise same row, otherwise any."""
        same_row = [(other, seconds) for other, seconds in self.times if other.row == job.row]
        alike = [seconds for other, seconds in same_row if other.scene == job.scene]
        return float(np.mean(alike or [seconds for _, seconds in same_row or self.times]))


def states_of(plan: Plan) -> dict[State, int]:
    """How many runs of a plan are finished, broken, new and stale."""
    found: dict[State, int] = {"finished": 0, "broken": 0, "new": 0, "stale": 0}
    for job in plan.jobs:
        found[plan.state(job)] += 1
    return found


def settled(
    plan: Plan, engine: Engine, jobs: int | Literal["auto"], device: str | None, redo: Redo = None
) -> tuple[Engine, float | None]:
    """The engine for what is left of a plan, and the seconds that takes where they had to be estimated.

    With jobs="auto" a short rest is played one run after the other, because processes take seconds to start.
    """
    left = to_play(plan, redo)
    if jobs != "auto" or engine.jobs == 1 or len(left) < 2:
        return engine if jobs != "auto" or engine.jobs == 1 else replace(engine, jobs=1), None
    try:
        alone = estimated_seconds(plan, replace(engine, jobs=1), device, redo)
    except FedwinnowError:  # of data that is not here, for example; the runs say it themselves
        return engine, None
    found = replace(engine, jobs=1 if alone <= WORTH else min(engine.jobs, len(left)))
    return found, alone / found.jobs


def estimated_seconds(plan: Plan, engine: Engine, device: str | None, redo: Redo = None) -> float:
    """Seconds for the rest of a plan, from a few steps of each model; all methods count as plain training."""
    from fedwinnow.experiment.prepare import prepare
    from fedwinnow.experiment.time_estimate import estimate

    known: dict[str, float] = {}
    total = 0.0
    for job in to_play(plan, redo):
        key = str({name: value for name, value in job.request.items() if name not in ("method", "seed")})
        if key not in known:
            stage = prepare(job.experiment)
            known[key] = estimate(stage, stage.experiment.rounds, "serial", device)
        total += known[key]
    return total / engine.jobs
