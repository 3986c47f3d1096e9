"""Which data of a plan is not on this machine, found out once and not in every run."""

from __future__ import annotations

import dataclasses

from fedwinnow.all_settings import Redo
from fedwinnow.data.dataset import Dataset
from fedwinnow.data.load import load
from fedwinnow.data.published_files import NotYetHere, only_planning
from fedwinnow.errors import FedwinnowError
from fedwinnow.study.sweep import to_play
from fedwinnow.study.sweep_plan import Plan


def data_to_come(plan: Plan, redo: Redo = None) -> tuple[Plan, str, str]:
    """The same as `without_data` where nothing may be downloaded, and what will be, which is no reason to leave it out.

    Nothing is read that has to be downloaded first, so something else may still be wrong with it.
    """
    with only_planning():
        return sorted_by_data(plan, redo)


def without_data(plan: Plan, redo: Redo = None) -> tuple[Plan, str]:
    """The plan without the runs that are left and whose data cannot be loaded, and one message about all of these."""
    playable, words, _ = sorted_by_data(plan, redo)
    return playable, words


def sorted_by_data(plan: Plan, redo: Redo) -> tuple[Plan, str, str]:
    """The playable part of a plan, why the rest is not, and what is still to come."""
    coming: list[str] = []
    left = {job.folder: job for job in to_play(plan, redo)}
    problems: dict[str, str] = {}
    counts: dict[str, int] = {}
    for job in left.values():
        data = job.experiment.data
        if isinstance(data, Dataset) or job.experiment.scene is not None:
            continue
        if str(data) not in counts:
            try:
                load(data)
            except NotYetHere as problem:
                coming.append(str(problem))
            except FedwinnowError as problem:
                problems[str(data)] = str(problem)
        counts[str(data)] = counts.get(str(data), 0) + 1
    lacking = {place for place, job in left.items() if str(job.experiment.data) in problems}
    reasons: dict[str, int] = {}
    for data, reason in problems.items():
        reasons[reason] = reasons.get(reason, 0) + counts[data]
    words = " ".join(f"{count} runs are left out: {reason}" for reason, count in reasons.items())
    playable = dataclasses.replace(plan, jobs=tuple(job for job in plan.jobs if job.folder not in lacking))
    return playable, words, " ".join(dict.fromkeys(coming))
