"""`fedwinnow join`: a site of a run over a network."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedwinnow.all_settings import PlaceSettings
from fedwinnow.commands.common import Flags
from fedwinnow.commands.serve_and_join import refuse_unless_protected, tell
from fedwinnow.errors import UsageError
from fedwinnow.setting import same


@dataclass(frozen=True)
class Join(Flags):
    """Take part in a run: train on this site's data, send what the ledger lists, keep the verdict on the labels.

    The folder gets ledger.jsonl (what left this site, when, how many bytes), the site's memory, and at the end
    audit.csv and report.html.
    """

    server: str = "127.0.0.1:8443"
    """The coordinator: host:port."""
    tls: Path | None = None
    """This site's folder from `fedwinnow certificates`, with ca.crt and site.key."""
    insecure: bool = False
    """Plain text without keys, for trials on one machine."""
    data: str | None = None
    """The site's data: a name with options (csv:path=a.csv,label=diagnosis,schema=schema.json), or a path."""
    scene: Path | None = None
    """Instead of --data: a saved scene, some of whose clients run on this machine."""
    clients: str | None = None
    """With --scene: which clients, for example 0-49 or 0,2,5-9; none: all."""
    least_count: int | None = None
    """Numbers about fewer samples do not leave this site; none: 5, or 0 with --scene. A coordinator may raise it."""
    name: str | None = None
    """The site's name; none: that of its --tls folder, or of this machine. With keys, the key decides."""
    out: Path | None = None
    """The site's folder; none: sites/<name>."""
    allow_exposure: Literal["model", "client", "sample"] | None = None
    """With --data: the most that others may learn about: the model, the site as a whole (client), or single samples.

    A method that sends more is refused. none: client."""
    device: str | None = same(PlaceSettings, "device")
    patience: float = 600.0
    """Seconds to wait for a coordinator that cannot be reached."""
    heartbeat: float = 30.0
    """Seconds between signs of life; after two without one, the coordinator counts this site as lost."""

    def run(self) -> int:
        """Answer until the run is over."""
        from fedwinnow.deployment.exposure_limit import USUAL
        from fedwinnow.deployment.flower_environment import prepare
        from fedwinnow.deployment.keys import SiteFiles
        from fedwinnow.deployment.site import Site, claim
        from fedwinnow.deployment.site_data import holding_of
        from fedwinnow.experiment.run_folder import RunFolder

        self.check()
        prepare("join")
        from fedwinnow.deployment import flower_visit

        files = None if self.tls is None else SiteFiles(self.tls)
        name = self.name or (self.tls.resolve().name if self.tls else socket.gethostname())
        holding = holding_of(self.data, self.scene, self.clients, self.device, self.least_count)
        folder = self.out or Path("sites") / name
        with RunFolder(folder).locked():
            claim(folder, name)
            site = Site(name, holding, folder, self.say, self.allow_exposure or USUAL)
            try:
                flower_visit.join(site, self.server, files, self.patience, self.heartbeat)
            except KeyboardInterrupt:
                self.say("interrupted; the same command takes part again")
                return 130
        self.say(f"the run is over; this site's files are in {folder}")
        if (folder / "report.html").exists():
            self.say(f"its labels in order: {folder / 'report.html'}; to look: fedwinnow review {folder} --anchor 30")
        self.emit({"folder": str(folder), "site": name})
        return 0

    def check(self) -> None:
        """Refuse wrong flags before any file is read."""
        found = re.fullmatch(r"[A-Za-z0-9._-]+:(\d{1,5})", self.server)
        if found is None or not 1 <= int(found[1]) <= 65535:
            raise UsageError(
                f"--server {self.server} was given; allowed: host:port, for example hospital.org:8443 (a host with "
                f"other letters in its xn-- form)."
            )
        if not 10 <= self.heartbeat <= 1800:
            raise UsageError(f"--heartbeat {self.heartbeat:g} was given; allowed: 10 to 1800 seconds.")
        if not self.patience >= 0:
            raise UsageError(f"--patience {self.patience:g} was given; allowed: 0 seconds or more.")
        if self.allow_exposure is not None and self.scene is not None:
            raise UsageError(
                f"--allow-exposure {self.allow_exposure} was given with --scene; allowed: with --data. The coordinator "
                f"has the samples of a scene too."
            )
        refuse_unless_protected(self.tls, self.insecure, self.say)

    def say(self, text: str) -> None:
        """Print a line for the operator."""
        tell(text, quiet=self.quiet)
