"""A run with --privacy: what its sites may spend, and what is said of the noise before it begins."""

from __future__ import annotations

import math
import warnings
from pathlib import Path

from fedwinnow.errors import FedwinnowWarning
from fedwinnow.experiment.prepare import Stage
from fedwinnow.federation.noisy_mean import noisy_means
from fedwinnow.federation.privacy_budget import PrivacyBudget
from fedwinnow.federation.private_training import mechanism_of
from fedwinnow.federation.rounds import Federation
from fedwinnow.federation.server import Server
from fedwinnow.mathematics.privacy import ClientPrivacy, find_privacy


def budget_of(stage: Stage, federation: Federation, place: Path) -> PrivacyBudget | None:
    """With --privacy: what the sites may spend; where the server adds the noise, it does from here on."""
    experiment, server = stage.experiment, federation.server
    privacy = find_privacy(experiment.privacy)
    if privacy is None:
        return None
    sizes = stage.sites.holdings.sizes.tolist()
    budget = PrivacyBudget(
        privacy, experiment, sizes, stage.site_names, federation.ledger, simulated=stage.simulated, place=place
    )
    if isinstance(privacy, ClientPrivacy):
        noise = mechanism_of(privacy, experiment, 0).noise
        server.release = noisy_means(server, privacy.clip, noise, simulated=stage.simulated)
    return budget


def warn_of_privacy(budget: PrivacyBudget, server: Server) -> None:
    """Say what protects whom, and how large the noise is beside what it hides."""
    privacy = budget.privacy
    said = ["noise from the operating system."]
    if budget.simulated:
        said = ["simulated noise, from the seed: this run shows what privacy costs and protects nobody."]
    if isinstance(privacy, ClientPrivacy):
        noise = budget.mechanism(0).noise * privacy.clip / server.per_round
        said.append(
            f"all {server.per_round} sites of a round together move the model by at most {privacy.clip:.3g}; the noise "
            f"on it has a length of about {noise * math.sqrt(server.model.trainable):.3g}."
        )
    protected = server.clients if isinstance(privacy, ClientPrivacy) else sum(budget.sizes)
    if privacy.delta * protected >= 1:
        said.append(f"delta={privacy.delta:g} is not below 1 / {protected}, the number of those protected.")
    warnings.warn(f"--privacy {privacy.name}: {' '.join(said)}", FedwinnowWarning, stacklevel=2)
