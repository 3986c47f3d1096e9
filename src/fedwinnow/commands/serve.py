"""`fedwinnow serve`: the coordinator of a run over a network."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from fedwinnow.commands.network import refuse_unless_protected, tell
from fedwinnow.commands.run import Run
from fedwinnow.errors import UsageError

if TYPE_CHECKING:
    from fedwinnow.backends.flower_link import Link
    from fedwinnow.experiment.play import Manner
    from fedwinnow.experiment.settings import Experiment


@dataclass
class Serve(Run):
    """Coordinate a run whose sites are other machines, each with `fedwinnow join`.

    With --scene the sites simulate clients of that scene. Without it they have data of their own, and --data is the
    coordinator's: it says what the task is and measures the model. No sample is sent; models say something about them.
    """

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
    """Sites have what they have; a scene has its own."""
    noise: tyro.conf.Suppress[str | None] = None
    """As for the partition."""
    test: tyro.conf.Suppress[float] = 0.2
    """All samples of the coordinator measure; a scene has its own test part."""

    def run(self) -> int:
        """Open the link, wait for the sites, play."""
        from fedwinnow.network.keys import ServerFiles
        from fedwinnow.network.quiet import prepare

        self.check()
        prepare("serve")
        from fedwinnow.backends.flower_link import Link

        files = None if self.tls is None else ServerFiles(self.tls)
        link = Link(self.host, self.port, files, self.timeout, self.say)
        try:
            self.say(f"listening on {self.host}:{self.port}{'' if files else ', insecure'}")
            return self.play(link)
        finally:
            link.close()

    def check(self) -> None:
        """What is needed besides what every run needs."""
        if self.sites < 1:
            raise UsageError(f"--sites {self.sites} was given; allowed: 1 or more.")
        if not 1 <= self.port <= 65535:
            raise UsageError(f"--port {self.port} was given; allowed: 1 to 65535.")
        if self.checkpoint_every != 1:
            raise UsageError(
                f"--checkpoint-every {self.checkpoint_every} was given; allowed: 1, because sites keep what they "
                f"remember for one round back only."
            )
        if not self.data and self.scene is None:
            raise UsageError("neither --data nor --scene was given; give the coordinator's own samples, or a scene.")
        refuse_unless_protected(self.tls, self.insecure, self.say)

    def play(self, link: Link) -> int:
        """The run itself."""
        from fedwinnow.backends.flower_run import Terms, coordinate

        names = None if self.tls is None else link.name_of
        terms = Terms(self.sites, self.timeout, self.patience, self.say, names)
        return self.carried_out(
            lambda experiment, folder, manner, watchers: coordinate(
                link.grid, experiment, folder, manner, terms, watchers
            )
        )

    def experiment(self) -> Experiment:
        """With a least count, unless the sites only simulate."""
        from fedwinnow.federation.least_count import usual_least_count

        if self.least_count is not None:
            return super().experiment()
        return replace(self, least_count=usual_least_count(simulated=self.scene is not None)).experiment()

    def manner(self) -> Manner:
        """Over the network, whatever a config file of a run on one machine says."""
        return replace(super().manner(), backend="flower")

    def say(self, text: str) -> None:
        """A line for the operator."""
        tell(text, quiet=self.quiet)
