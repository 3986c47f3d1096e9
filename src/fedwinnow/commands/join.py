"""`fedwinnow join`: a site of a run over a network."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedwinnow.commands.common import Flags
from fedwinnow.commands.network import refuse_unless_protected, tell, with_flower
from fedwinnow.errors import UsageError

if TYPE_CHECKING:
    from fedwinnow.network.site import Holding


@dataclass
class Join(Flags):
    """Take part in a run: train on the data that is here, send what the ledger lists, keep the verdict on the labels.

    The folder gets ledger.jsonl (what left this site, when, how many bytes), the site's own memory, and at the end
    audit.csv and report.html.
    """

    server: str = "127.0.0.1:8443"
    """The coordinator: host:port."""
    tls: Path | None = None
    """This site's folder of `fedwinnow certificates`: ca.crt and site.key."""
    insecure: bool = False
    """Plain text and no key: for trials on one machine."""
    data: str | None = None
    """The site's data: a name with options (csv:path=a.csv,label=diagnosis,schema=schema.json), or a path."""
    scene: Path | None = None
    """Instead of --data: a saved scene, of which this machine carries some clients."""
    clients: str | None = None
    """With --scene: which clients, for example 0-49 or 0,2,5-9; none: all."""
    name: str | None = None
    """The site's name; none: that of its --tls folder, or of this machine. With keys, the key decides."""
    out: Path | None = None
    """The site's folder; none: sites/<name>."""
    device: str | None = None
    """cpu, cuda, cuda:1, mps; none: the best there is."""
    patience: float = 600.0
    """Seconds to wait for a coordinator that cannot be reached."""

    def run(self) -> int:
        """Answer until the run is over."""
        from fedwinnow.network.keys import SiteFiles
        from fedwinnow.network.site import Site
        from fedwinnow.store import RunFolder

        if (self.data is None) == (self.scene is None):
            raise UsageError("give --data or --scene, one of them.")
        if not re.fullmatch(r"[^\s:/]+:\d{1,5}", self.server):
            raise UsageError(f"--server {self.server} was given; allowed: host:port, for example hospital.org:8443.")
        refuse_unless_protected(self.tls, self.insecure, self.say)
        with with_flower("join"):
            from fedwinnow.backends import flower_link
        files = None if self.tls is None else SiteFiles(self.tls)
        name = self.name or (self.tls.resolve().name if self.tls else socket.gethostname())
        holding = self.holding()
        folder = self.out or Path("sites") / name
        with RunFolder(folder).locked():
            site = Site(name, holding, folder, self.say)
            try:
                flower_link.join(site, self.server, files, self.patience)
            except KeyboardInterrupt:
                self.say("interrupted; the same command takes part again")
                return 130
        self.say(f"the run is over; this site's files are in {folder}")
        self.emit({"folder": str(folder), "site": name})
        return 0

    def holding(self) -> Holding:
        """The data that is here, read and checked before anybody is told of it."""
        from fedwinnow.data.load import load
        from fedwinnow.network.holdings import OwnData, SceneShare

        if self.scene is not None:
            return SceneShare(self.scene, numbers_in(self.clients), self.device)
        return OwnData(load(self.data or ""), self.device)

    def say(self, text: str) -> None:
        """A line for the operator."""
        tell(text, quiet=self.quiet)


def numbers_in(text: str | None) -> tuple[int, ...]:
    """0-2,5 as numbers; none for nothing."""
    numbers: list[int] = []
    for piece in (text or "").split(",") if text else []:
        found = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", piece)
        if found is None or int(found[2] or found[1]) < int(found[1]):
            raise UsageError(f"--clients {text} was given; allowed: numbers and ranges such as 0-49 or 0,2,5-9.")
        numbers += range(int(found[1]), int(found[2] or found[1]) + 1)
    return tuple(sorted(set(numbers)))
