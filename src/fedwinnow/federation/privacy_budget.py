"""The budget of a run with --privacy: what every site has spent, counted by the models that it sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fedwinnow.all_settings import Training
from fedwinnow.errors import RunError
from fedwinnow.federation.ledger import Ledger
from fedwinnow.federation.private_training import mechanism_of
from fedwinnow.mathematics.accountant import Mechanism
from fedwinnow.mathematics.privacy import ClientPrivacy, Privacy

SIMULATED = "simulated: it comes from the seed and protects nobody"
REAL = "from the operating system"


class PrivacyBudget:
    """What the sites of a run have spent; the ledger counts their visits."""

    def __init__(
        self,
        privacy: Privacy,
        training: Training,
        sizes: Sequence[int],
        names: Sequence[str],
        ledger: Ledger,
        *,
        simulated: bool,
    ) -> None:
        self.privacy, self.training, self.sizes, self.names = privacy, training, list(sizes), list(names)
        self.ledger, self.simulated = ledger, simulated

    def mechanism(self, client: int) -> Mechanism:
        """What a visit of this site is."""
        return mechanism_of(self.privacy, self.training, self.sizes[client])

    def visits(self, client: int) -> int:
        """How many models of this site were received."""
        return self.ledger.entries.get(self.names[client], {}).get("weights", [0])[0]

    def epsilon(self, client: int, visits: int | None = None) -> float:
        """What a site has spent, or would have with so many visits."""
        visits = self.visits(client) if visits is None else visits
        return self.mechanism(client).epsilon(visits, self.privacy.delta, self.privacy.epsilon)

    def spent(self) -> float:
        """What the site that has spent most has spent."""
        return max((self.epsilon(client) for client, size in enumerate(self.sizes) if size), default=0.0)

    def check(self, clients: Iterable[int], round_number: int) -> None:
        """End the run before a site would spend more than its budget."""
        for client in clients:
            visits = self.visits(client) + 1
            if visits > self.privacy.most_visits:
                raise RunError(
                    f"round {round_number}: {self.names[client]} has taken part {visits - 1} times, for which its "
                    f"budget of epsilon {self.privacy.epsilon:g} was planned; once more would make it "
                    f"{self.epsilon(client, visits):.3g}. The run ends before; plan for more with "
                    f"--privacy {self.privacy.name}:...,visits={visits}."
                )

    def summary(self) -> dict[str, Any]:
        """For summary.json."""
        noise = [self.mechanism(client).noise for client, size in enumerate(self.sizes) if size]
        return {
            "protects": "each site" if isinstance(self.privacy, ClientPrivacy) else "each sample of every site",
            "kind": self.privacy.name,
            "epsilon": self.privacy.epsilon,
            "delta": self.privacy.delta,
            "clip": self.privacy.clip,
            "spent": round(self.spent(), 4),
            "planned_rounds": self.privacy.rounds,
            "planned_visits": self.privacy.visits,
            "noise_multiplier": [min(noise), max(noise)] if noise else None,
            "noise": SIMULATED if self.simulated else REAL,
        }

    def by_site(self) -> dict[str, Any]:
        """For ledger.json: the visits of every site and what they have cost it."""
        return {
            name: {
                "visits": self.visits(client),
                "epsilon": round(self.epsilon(client), 4),
                "delta": self.privacy.delta,
            }
            for client, name in sorted(enumerate(self.names), key=lambda pair: pair[1])
            if self.sizes[client]
        }
