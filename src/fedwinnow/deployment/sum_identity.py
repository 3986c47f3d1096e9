"""Who a site is in a secure sum, and how it knows the other sites: by the keys of `fedwinnow certificates`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fedwinnow.deployment.error_codes import REFUSED, for_others
from fedwinnow.deployment.exposure_limit import Declined
from fedwinnow.deployment.keys import SiteFiles
from fedwinnow.errors import DataError
from fedwinnow.federation.ledger import FROM_SEED, FROM_SYSTEM
from fedwinnow.federation.summing.party import Identity, Peers
from fedwinnow.federation.summing.secure_sums import simulated_identity, simulated_peers
from fedwinnow.mathematics.masks import from_system, private_key, public_key

OTHERS = "sites"  # in a site's folder: the public keys of all sites


class Identities(Protocol):
    """The identities of the clients at one site."""

    @property
    def masks_from(self) -> str:
        """Where their random bytes come from."""

    def of(self, client: int, seed: int) -> tuple[Identity, Peers]:
        """A client's identity, and the public keys of all."""


@dataclass(frozen=True)
class IdentitiesOfScene:
    """Clients of a simulation: everything follows from the seed."""

    names: Sequence[str]
    masks_from: str = FROM_SEED

    def of(self, client: int, seed: int) -> tuple[Identity, Peers]:
        return simulated_identity(seed, self.names[client]), simulated_peers(seed, self.names)


@dataclass(frozen=True)
class OwnIdentity:
    """A real site: its own key, and the public keys of the others from its --tls folder; randomness of the system."""

    name: str
    key: Any
    others: dict[str, Any]
    masks_from: str = FROM_SYSTEM

    @classmethod
    def in_folder(cls, files: SiteFiles, name: str) -> OwnIdentity:
        """From the folder of `fedwinnow certificates`."""
        key = private_key(files.key.read_bytes(), str(files.key))
        return cls(name, key, public_keys_in(files.folder / OTHERS))

    def of(self, client: int, seed: int) -> tuple[Identity, Peers]:
        if len(self.others) < 2:
            raise for_others(
                Declined(
                    "the coordinator wants secure sums, and this site does not know the public keys of the other "
                    "sites: its --tls folder needs the folder 'sites' with NAME.pub of every site, as the "
                    "coordinator's has it. Compare them with the other sites, not only with the coordinator."
                ),
                REFUSED,
            )
        return Identity(self.name, self.key, from_system), self.others.get


def public_keys_in(folder: Path) -> dict[str, Any]:
    """The public keys of sites by their names; none if there is no such folder."""
    try:
        return {path.stem: public_key(path.read_bytes(), str(path)) for path in sorted(folder.glob("*.pub"))}
    except OSError as problem:
        raise DataError(f"{folder}: cannot be read ({problem.strerror}).") from None


def identities_of(holding: Any, files: SiteFiles | None, name: str) -> Identities | None:
    """Who the clients at a site are in a secure sum; None for a real site without keys."""
    if holding.simulated:
        return IdentitiesOfScene(holding.scene.site_names)
    return None if files is None else OwnIdentity.in_folder(files, name)
