"""The plan of a budget of privacy: for how many rounds, how often a site takes part, what a longer run would cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedwinnow.errors import FedwinnowError, UsageError
from fedwinnow.experiment.run_folder import RunFolder
from fedwinnow.experiment.settings import Experiment
from fedwinnow.federation.method import Method
from fedwinnow.federation.private_training import mechanism_of
from fedwinnow.federation.server import drawn, participants
from fedwinnow.mathematics.privacy import ClientPrivacy, Privacy, find_privacy


def planned(experiment: Experiment, method: Method, sizes: Sequence[int], *, simulated: bool = True) -> Experiment:
    """The experiment with the plan of its budget written out; `sizes` has the training samples of every site.

    A run that is longer than its plan is refused here, before it begins or goes on. Between real sites, who takes part
    is not known before they agree, so the plan counts every round.
    """
    privacy = find_privacy(experiment.privacy)
    if privacy is None:
        return experiment
    rounds = privacy.rounds or max(1, experiment.rounds)
    available = np.flatnonzero(np.asarray(sizes) >= max(1, experiment.least_count)).tolist()
    usual = simulated and type(method).choose is Method.choose and bool(available)

    def visits(count: int) -> int:
        return most_visits(experiment, count, len(sizes), available) if usual and count else count

    plan, needed = privacy.planned(rounds, visits(rounds)), visits(experiment.rounds)
    if experiment.rounds > rounds or (simulated and needed > plan.most_visits):
        cost = max(costs(plan, needed, experiment, [size for size in sizes if size]), default=0.0)
        raise UsageError(
            f"--rounds {experiment.rounds} was given, in which a site takes part up to {needed} times; the budget of "
            f"epsilon {plan.epsilon:g} is planned for {rounds} rounds and {plan.visits} times, and this would cost "
            f"{cost:.3g}. Allowed: fewer rounds, or a plan for more before the first round."
        )
    return replace(experiment, privacy=plan)


def most_visits(experiment: Experiment, rounds: int, clients: int, available: list[int]) -> int:
    """In how many rounds the site is drawn that is drawn most often; who is drawn follows from the seed alone."""
    count = participants(experiment.participation, clients, len(available))
    if count == len(available):
        return rounds
    chosen = [client for number in range(1, rounds + 1) for client in drawn(experiment.seed, number, available, count)]
    return int(np.bincount(chosen).max())


def refuse_overspending(folder: RunFolder, experiment: Experiment, sizes: Sequence[int]) -> None:
    """Refuse to continue a run for more rounds than its budget was planned for."""
    if experiment.privacy is None or not folder.holds_run:
        return
    before, now = stored_plan(folder), find_privacy(experiment.privacy)
    if before is None or now is None or before.rounds is None or now.rounds is None:
        return
    if before.without_plan() != now.without_plan() or now.rounds <= before.rounds:
        return
    cost = max(costs(before, now.most_visits, experiment, [size for size in sizes if size]), default=0.0)
    raise UsageError(
        f"--rounds {experiment.rounds} was given, but this run planned its budget of epsilon {before.epsilon:g} for "
        f"{before.rounds} rounds; {now.rounds} would cost {cost:.3g}. Allowed: {before.rounds} rounds at most, or "
        f"another folder, in which the budget is planned for more from the start."
    )


def costs(plan: Privacy, visits: int, experiment: Experiment, sizes: list[int]) -> list[float]:
    """What so many visits would cost every kind of site, with the noise of the plan."""
    kinds = {0} if isinstance(plan, ClientPrivacy) else set(sizes)
    return [mechanism_of(plan, experiment, size).epsilon(visits, plan.delta, plan.epsilon) for size in kinds]


def stored_plan(folder: RunFolder) -> Privacy | None:
    """The promise in a run folder, with its plan; None if it has none."""
    try:
        written: Any = folder.settings().get("privacy")
        return find_privacy(written)
    except FedwinnowError:
        return None
