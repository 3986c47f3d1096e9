"""The settings of a run whose sites are other machines."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedwinnow.experiment.run_settings import RunFromFile
from fedwinnow.flags import as_flags
from fedwinnow.setting import changed, setting

if TYPE_CHECKING:
    from fedwinnow.experiment.play import Execution
    from fedwinnow.experiment.settings import Experiment


@as_flags("backend", "clients", "partition", "noise", "test")  # sites, or a scene, have their own
@dataclass(frozen=True, kw_only=True)
@changed(
    data=("", "The coordinator's own samples: they fix classes and columns for everybody, and measure the model."),
    participation=1.0,
    least_count=(
        None,
        "What concerns fewer samples does not leave a site; none: 5, or 0 with --scene. A site may ask for more.",
    ),
    on_client_error="drop",
    backend="flower",
)
class ServeSettings(RunFromFile):
    """The settings of a coordinator: those of a run, some with other defaults, and those of the link."""

    sites: int = setting(0, "How many sites must be there before the first round.", at_least=1)
    tls: Path | None = setting(
        None, "The coordinator's folder of `fedwinnow certificates`: ca.crt, server.crt, server.key, sites/NAME.pub."
    )
    insecure: bool = setting(
        False,
        "Plain text and no keys: whoever reaches the port can read all and take part. For trials on one machine.",
    )
    host: str = setting("127.0.0.1", "The address to listen on; 0.0.0.0 for all.")
    port: int = setting(8443, "The port to listen on.", at_least=1, at_most=65535, allowed="1 to 65535")
    timeout: float = setting(
        600.0, "Seconds for a site to answer one question; it is left out of the round after that."
    )
    patience: float = setting(3600.0, "Seconds to wait for the sites at the start.")

    def experiment(self) -> Experiment:
        """The experiment; its least count is 0 in a simulation unless it is set."""
        from fedwinnow.federation.ledger import usual_least_count

        if self.least_count is not None:
            return super().experiment()
        return replace(self, least_count=usual_least_count(simulated=self.scene is not None)).experiment()

    def execution(self) -> Execution:
        """How to run it; always over the network, also with the config file of a run on one machine."""
        return replace(super().execution(), backend="flower")
