"""`fedwinnow certificates`: make, add, renew and revoke the certificates and keys of a federation."""

from __future__ import annotations

import getpass
import sys
from dataclasses import dataclass
from pathlib import Path

from fedwinnow.commands.common import Flags
from fedwinnow.errors import UsageError
from fedwinnow.files import text_of


@dataclass(frozen=True)
class Certificates(Flags):
    """Make a certificate authority, the coordinator's certificate, and a folder with a key for every site.

    Give each site only its own folder, over a channel that you trust; server.key and ca.key stay with the coordinator.
    """

    host: tuple[str, ...] = ()
    """The names or addresses under which sites reach the coordinator."""
    sites: tuple[str, ...] = ()
    """The names of the sites."""
    out: Path = Path("certs")
    """A new folder; with --add, --renew and --revoke the folder that was made before."""
    passphrase: Path | None = None
    """A file whose first line opens the authority's key; none: you are asked at the terminal."""
    add: str | None = None
    """Make a key and a folder for one more site."""
    revoke: str | None = None
    """Take away a site's key: from the next `serve` on, it cannot join."""
    renew: bool = False
    """Make the coordinator's certificate anew, for the same key and hosts; the sites need nothing new."""

    def run(self) -> int:
        """Do what was asked, and print who gets what."""
        if (self.add is not None) + (self.revoke is not None) + self.renew > 1:
            raise UsageError("--add, --revoke and --renew exclude each other; give one of them.")
        if self.add is not None or self.revoke is not None or self.renew:
            if self.host or self.sites:
                raise UsageError(
                    "--host and --sites are for a new folder; leave them out with --add, --renew, --revoke."
                )
            return self.changed()
        return self.made()

    def made(self) -> int:
        """A new folder."""
        from fedwinnow.deployment.certificates import make_certificates, refuse_unusable

        if not self.host or not self.sites:
            raise UsageError("give --host with the coordinator's name, and --sites with the names of the sites.")
        refuse_unusable(self.out, self.host, self.sites)  # before anybody is asked for a passphrase
        passphrase = self.secret(new=True)
        written = make_certificates(self.out, self.host, self.sites, passphrase)
        kept = passphrase is not None
        self.emit({"folder": str(self.out), "files": [str(path) for path in written], "authority_key_kept": kept})
        self.tell(f"{self.out}: the coordinator's folder, for serve --tls {self.out}")
        for name in self.sites:
            self.tell(f"{self.out / name}: for site {name} alone, for join --tls")
        if kept:
            self.tell(f"{self.out / 'ca.key'}: the authority's key, under your passphrase; --renew needs both")
        else:
            self.tell(
                "the authority's key was not kept, because there is no passphrase: when the coordinator's certificate "
                "ends, every site needs a new folder (--passphrase FILE keeps the key)"
            )
        return 0

    def changed(self) -> int:
        """One change to a folder that was made before."""
        from fedwinnow.deployment.certificates import (
            add_site,
            refuse_without_authority,
            renew_server,
            revoke_site,
        )

        if self.add is not None:
            files = add_site(self.out, self.add)
            self.emit({"folder": str(self.out), "added": self.add, "files": [str(path) for path in files]})
            self.tell(f"{self.out / self.add}: for site {self.add} alone, for join --tls")
            self.tell("serve knows the new site from its next start on")
        elif self.revoke is not None:
            kept = revoke_site(self.out, self.revoke)
            self.emit({"folder": str(self.out), "revoked": self.revoke})
            self.tell(
                f"{self.revoke} cannot join any more from the next start of serve on; its public key is in {kept}"
            )
            self.tell("a serve that runs now still knows it: stop it, and start it again with --resume")
            self.tell("if its people are to go on with a new key, give them another name: certificates --add NAME")
        else:
            refuse_without_authority(self.out)  # before anybody is asked for a passphrase
            last = renew_server(self.out, self.secret(new=False) or b"")
            self.emit({"folder": str(self.out), "ends": f"{last:%Y-%m-%d}"})
            self.tell(f"{self.out / 'server.crt'}: new, ends on {last:%Y-%m-%d}; the sites need nothing new")
        return 0

    def secret(self, *, new: bool) -> bytes | None:
        """The passphrase from the file or the terminal; None where there is neither."""
        from fedwinnow.deployment.certificates import SHORTEST_PASSPHRASE

        if self.passphrase is not None:
            lines = text_of(self.passphrase).splitlines()
            given = lines[0] if lines else ""
        elif sys.stdin.isatty():
            given = getpass.getpass(
                "passphrase for the authority's key (empty: the key is not kept): " if new else "passphrase: "
            )
            if new and not given:
                return None
            if new and getpass.getpass("the same again: ") != given:
                raise UsageError("the two passphrases differ; nothing was made. Try again.")
        elif new:
            return None
        else:
            raise UsageError(
                "--renew needs the passphrase of ca.key; give --passphrase FILE, or start it at a terminal."
            )
        if new and len(given) < SHORTEST_PASSPHRASE:
            raise UsageError(f"the passphrase has {len(given)} characters; allowed: at least {SHORTEST_PASSPHRASE}.")
        return given.encode()

    def tell(self, text: str) -> None:
        """Print a line."""
        self.console().print(text, markup=False)
