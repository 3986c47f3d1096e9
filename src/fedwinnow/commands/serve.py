"""`fedwinnow serve`: the coordinator of a run over a network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fedwinnow.commands.network import refuse_unless_protected, tell
from fedwinnow.commands.run import Run
from fedwinnow.errors import UsageError

if TYPE_CHECKING:
    from fedwinnow.backends.flower_link import Link


@dataclass
class Serve(Run):
    """Coordinate a run whose sites are other machines, each with `fedwinnow join`.

    With --scene the sites simulate clients of that scene. Without it they have data of their own, and --data is the
    coordinator's: it says what the task is and measures the model. No sample leaves a site.
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
        """The run itself, with a progress bar on a terminal."""
        from fedwinnow.api import default_folder
        from fedwinnow.backends.flower_run import Terms, coordinate
        from fedwinnow.commands.progress import Bar, show_summary
        from fedwinnow.experiment.play import Manner
        from fedwinnow.federation.rounds import Faults

        experiment = self.experiment()
        folder, console = self.out or default_folder(experiment), self.console()
        manner = Manner("flower", self.device, self.resume, 1, Faults(self.on_client_error, self.quorum))
        terms = Terms(self.sites, self.timeout, self.patience, self.say, link.name_of)
        try:
            with Bar(console, "flower", self.device) as bar:
                summary = coordinate(link.grid, experiment, folder, manner, terms, (bar,))
        except KeyboardInterrupt:
            self.say(f"interrupted; continue with the same command and --resume (folder {folder})")
            return 130
        self.emit({"folder": str(folder), **summary})
        show_summary(summary, folder, console)
        return 0

    def say(self, text: str) -> None:
        """A line for the operator."""
        tell(text, quiet=self.quiet)
