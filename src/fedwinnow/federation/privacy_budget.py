"""The budget of a run with --privacy: what every site has spent, counted by how often it was asked to train.

What comes of it does not matter: a site that fails, or whose model is refused, may have drawn its noise or shown its
model before. Between real sites the count is on the disk before the question leaves, so that it survives whatever
happens; in a simulation a round that is played again has the same noise, and the checkpoint has the count.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedwinnow.all_settings import Training
from fedwinnow.errors import RunError
from fedwinnow.federation.ledger import Ledger
from fedwinnow.federation.private_training import mechanism_of
from fedwinnow.files import json_of, write_text
from fedwinnow.mathematics.accountant import Mechanism
from fedwinnow.mathematics.privacy import ClientPrivacy, Privacy

SIMULATED = "simulated: it comes from the seed and protects nobody"
REAL = "from the operating system"
FILE = "privacy.json"  # in the run folder of real sites: how often each was asked


class PrivacyBudget:
    """What the sites of a run have spent."""

    def __init__(
        self,
        privacy: Privacy,
        training: Training,
        sizes: Sequence[int],
        names: Sequence[str],
        ledger: Ledger,
        *,
        simulated: bool,
        place: Path | None = None,
    ) -> None:
        """`place` is the run folder, where the count of real sites is kept."""
        self.privacy, self.training, self.sizes, self.names = privacy, training, list(sizes), list(names)
        self.ledger, self.simulated = ledger, simulated
        self.path = None if simulated or place is None else place / FILE
        self.asked: dict[str, int] = {}

    def restore(self, stored: Mapping[str, int] | None) -> None:
        """Go on counting from a checkpoint, and from what was asked after it; None: it is from an older version."""
        if stored is None:
            stored = {name: sent.get("weights", [0])[0] for name, sent in self.ledger.entries.items()}
        written = json_of(self.path, {"asked": {"*": int}})["asked"] if self.path and self.path.exists() else {}
        self.asked = {name: max(stored.get(name, 0), written.get(name, 0)) for name in {*stored, *written}}

    def mechanism(self, client: int) -> Mechanism:
        """What a visit of this site is."""
        return mechanism_of(self.privacy, self.training, self.sizes[client])

    def visits(self, client: int) -> int:
        """How often this site was asked for a model."""
        return self.asked.get(self.names[client], 0)

    def book(self, client: int, visits: int = 1) -> None:
        """Count that a site is about to be asked; -1 where it turned out to have too few samples to take part."""
        self.asked[self.names[client]] = self.visits(client) + visits
        if self.path is not None:
            try:
                write_text(self.path, json.dumps({"asked": self.asked}) + "\n")
            except OSError as problem:
                raise RunError(f"{self.path}: cannot be written ({problem.strerror}); no site was asked.") from None

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
