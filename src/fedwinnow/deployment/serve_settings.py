"""The settings of a run whose sites are other machines."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedwinnow.auditing.audit_settings import AuditAsked
from fedwinnow.experiment.run_settings import RunFromFile
from fedwinnow.experiment.settings import Experiment
from fedwinnow.flags import as_flags
from fedwinnow.setting import changed, same, setting, settings_in

if TYPE_CHECKING:
    from fedwinnow.experiment.play import Execution

OF_AN_AUDIT = ("method", "rounds", "optimizer")  # settings whose default is another one in an audit


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
    method=(None, "The method; none: fedavg, and with --audit the one that an audit trains with."),
    rounds=(None, "How many rounds; none: 40, and with --audit 20 for each of three trainings."),
    optimizer=(None, "The local optimiser; none: that of `fedwinnow run`, and with --audit that of `fedwinnow audit`."),
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
    page: int | None = setting(
        None,
        "Show the state of the run on a page of this machine, at this port; 0 takes any free one.",
        at_least=0,
        at_most=65535,
        allowed="0 to 65535",
    )

    audit: bool = setting(
        False, "Audit labels: every site judges its own and keeps the report; counts leave it.", since="0.2.0"
    )
    judge: str | None = same(AuditAsked, "judge", "With --audit: how the models judge (see `fedwinnow judges`).")
    threshold: float | None = same(
        AuditAsked, "threshold", "With --audit: from which p_wrong on a label is called; none: 0.5."
    )
    expected_false_alarms: float | None = same(
        AuditAsked,
        "expected_false_alarms",
        "With --audit: choose the threshold instead, by the share of called labels that may be right after all.",
    )
    group: str | None = same(
        AuditAsked, "group", "With --audit: the column of the sites' tables that says which rows belong together."
    )
    budget: int | None = same(
        AuditAsked, "budget", "With --audit: mark so many labels to look at, the first in order over all sites."
    )

    update: Path | None = setting(
        None,
        "With --audit: the folder of such an audit; sum what people at the sites said of labels drawn by lot.",
        since="0.2.0",
    )
    look_cost: float = setting(
        0.2, "With --update: what a look costs, if a corrected label is worth 1.", above=0, below=1, since="0.2.0"
    )

    def experiment(self) -> Experiment:
        """The experiment; its least count is 0 in a simulation unless it is set."""
        from fedwinnow.federation.ledger import usual_least_count

        usual: dict[str, Any] = {
            name: settings_in(AuditAsked if self.audit else Experiment)[name].default for name in OF_AN_AUDIT
        }
        usual["least_count"] = usual_least_count(simulated=self.scene is not None)
        missing = {name: value for name, value in usual.items() if getattr(self, name) is None}
        if not missing:
            return super().experiment()
        complete: ServeSettings = replace(self, **missing)
        return complete.experiment()

    def execution(self) -> Execution:
        """How to run it; always over the network, also with the config file of a run on one machine."""
        return replace(super().execution(), backend="flower")
