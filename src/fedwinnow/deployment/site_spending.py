"""What a site has spent of its budget of privacy: counted here, before it trains, whatever the coordinator says.

The count only grows. A question that is asked again, because the coordinator was started anew, is answered with new
noise and costs again; so does one whose answer fails or does not leave, because that may depend on the samples.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedwinnow.deployment.error_codes import REFUSED, for_others
from fedwinnow.errors import DataError, RunError
from fedwinnow.federation.host import Host, Task
from fedwinnow.federation.private_training import mechanism_of
from fedwinnow.files import json_of, write_text
from fedwinnow.mathematics.privacy import ClientPrivacy, Privacy, find_privacy

FILE = "privacy.json"  # in the folder of a run at a site
FORM = {"kind": str, "visits": int, "epsilon": float, "delta": float}


@dataclass(frozen=True)
class Spending:
    """The count of one run, and what other runs of the same site have spent."""

    site: Path  # the site's folder
    run: Path  # the folder of the run in it

    def book(self, host: Host, task: Task) -> dict[str, Any] | None:
        """Count one more model that is about to be trained; an error if that would spend more than the budget.

        Returns what the ledger says of it; None where nothing is spent.
        """
        privacy = host.privacy
        if privacy is None or task.ask != "train":
            return None  # the host refuses every other question before it looks at a sample
        visits = self.visits() + 1
        mine = host.sites.holdings.of(task.client)
        samples = mine.stop - mine.start
        if samples < host.setup.settings.least_count:
            return None  # the site does not take part
        costs = mechanism_of(privacy, host.setup.settings, samples)
        epsilon = costs.epsilon(visits, privacy.delta, privacy.epsilon)
        if visits > privacy.most_visits:
            raise for_others(
                RunError(
                    f"this site has trained {visits - 1} times, for which its budget of epsilon {privacy.epsilon:g} "
                    f"was planned; one more would make it {epsilon:.3g}. Nothing was sent. A longer run needs a budget "
                    f"that is planned for more: --privacy {privacy.name}:...,visits={visits}."
                ),
                REFUSED,
            )
        spent = {"kind": privacy.name, "visits": visits, "epsilon": round(epsilon, 4), "delta": privacy.delta}
        write_text(self.run / FILE, json.dumps(spent) + "\n")
        return {**spent, "noise": noise_of(privacy), "epsilon_of_all_runs": round(self.total(), 4)}

    def visits(self) -> int:
        """How many models this site has trained in this run."""
        path = self.run / FILE
        return int(json_of(path, FORM)["visits"]) if path.exists() else 0

    def total(self) -> float:
        """What all runs of this site have spent: they are about the same samples, so it adds up."""
        return float(sum(json_of(path, FORM)["epsilon"] for path in self.site.glob(f"*/{FILE}")))


def noise_of(privacy: Privacy) -> str:
    """Who makes the noise, for the ledger."""
    if isinstance(privacy, ClientPrivacy):
        return "added by the coordinator, who sees this site's clipped update without it"
    return "added here, from the operating system"


def promise_of(spec: Any) -> str:
    """The promise of a run in words, for the people at a site."""
    privacy = find_privacy(spec)
    if privacy is None:
        return "the run has no differential privacy: what leaves may tell about single samples"
    whom = "this site as a whole" if isinstance(privacy, ClientPrivacy) else "each sample of this site"
    return (
        f"differential privacy for {whom}: epsilon {privacy.epsilon:g} at delta {privacy.delta:g} in at most "
        f"{privacy.most_visits} visits; the noise is {noise_of(privacy)}"
    )


def check_plan(spec: Any) -> None:
    """Refuse a promise without a plan: a site could not tell when its budget is spent."""
    privacy = find_privacy(spec)
    if privacy is not None and privacy.visits is None:
        raise for_others(DataError("the coordinator's --privacy does not say how often a site takes part."), "settings")
