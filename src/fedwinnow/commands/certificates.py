"""`fedwinnow certificates`: make the certificates and keys of a federation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedwinnow.commands.common import Flags
from fedwinnow.errors import UsageError


@dataclass(frozen=True)
class Certificates(Flags):
    """Make a certificate authority, the coordinator's certificate, and a folder with a key for every site.

    Give each site only its own folder, over a channel that you trust; server.key stays with the coordinator.
    """

    host: tuple[str, ...] = ()
    """The names or addresses under which sites reach the coordinator."""
    sites: tuple[str, ...] = ()
    """The names of the sites."""
    out: Path = Path("certs")
    """A new folder."""

    def run(self) -> int:
        """Make them, and print who gets which folder."""
        from fedwinnow.deployment.keys import make_certificates

        if not self.host or not self.sites:
            raise UsageError("give --host with the coordinator's name, and --sites with the names of the sites.")
        written = make_certificates(self.out, self.host, self.sites)
        self.emit({"folder": str(self.out), "files": [str(path) for path in written]})
        console = self.console()
        console.print(f"{self.out}: the coordinator's folder, for serve --tls {self.out}", markup=False)
        for name in self.sites:
            console.print(f"{self.out / name}: for site {name} alone, for join --tls", markup=False)
        return 0
