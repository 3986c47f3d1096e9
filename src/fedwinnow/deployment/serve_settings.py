"""The settings of a run whose sites are other machines."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from fedwinnow.experiment.run_settings import RunSettings

if TYPE_CHECKING:
    from fedwinnow.experiment.play import Execution
    from fedwinnow.experiment.settings import Experiment


@dataclass
class ServeSettings(RunSettings):
    """The settings of a coordinator: those of a run, some with other defaults, and those of the link."""

    data: str = ""
    """The coordinator's own samples: they fix classes and columns for everybody, and measure the model."""
    sites: int = 0
    """How many sites must be there before the first round."""
    tls: Path | None = None
    """The coordinator's folder of `fedwinnow certificates`: ca.crt, server.crt, server.key, sites/NAME.pub."""
    insecure: bool = False
    """Plain text and no keys: whoever reaches the port can read everything and take part. For trials on one machine."""
    host: str = "127.0.0.1"
    """The address to listen on; 0.0.0.0 for all."""
    port: int = 8443
    """The port to listen on."""
    timeout: float = 600.0
    """Seconds for a site to answer one question; it is left out of the round after that."""
    patience: float = 3600.0
    """Seconds to wait for the sites at the start."""
    participation: float = 1.0
    """The share of sites that takes part in a round."""
    on_client_error: Literal["stop", "drop"] = "drop"
    """When a site fails: leave it out of the round, or stop with its name."""
    least_count: int | None = None  # type: ignore[assignment]
    """What concerns fewer samples does not leave a site; none: 5, or 0 with --scene. A site may ask for more."""
    backend: tyro.conf.Suppress[str] = "flower"
    """The network."""
    clients: tyro.conf.Suppress[int] = 20
    """The sites, or those of the scene."""
    partition: tyro.conf.Suppress[str] = "iid"
    """Sites have their own data; a scene has its partition."""
    noise: tyro.conf.Suppress[str | None] = None
    """Labels stay as the sites have them; a scene has its noise."""
    test: tyro.conf.Suppress[float] = 0.2
    """The coordinator tests with all of its samples; a scene has its own test part."""

    def experiment(self) -> Experiment:
        """The experiment; its least count is 0 in a simulation unless it is set."""
        from fedwinnow.federation.least_count import usual_least_count

        if self.least_count is not None:
            return super().experiment()
        return replace(self, least_count=usual_least_count(simulated=self.scene is not None)).experiment()

    def execution(self) -> Execution:
        """How to run it; always over the network, also with the config file of a run on one machine."""
        return replace(super().execution(), backend="flower")
