"""The files of certificates and keys: the coordinator's folder, and that of a site."""

from __future__ import annotations

import hashlib
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedwinnow.errors import DataError


@dataclass(frozen=True)
class ServerFiles:
    """The coordinator's files: its certificate, and the public key of every site that may join."""

    folder: Path

    def __post_init__(self) -> None:
        require(self.folder, "ca.crt", "server.crt", "server.key")
        if not self.site_keys():
            raise DataError(f"--tls {self.folder}: there is no public key of a site (sites/NAME.pub).")

    @property
    def authority(self) -> Path:
        return self.folder / "ca.crt"

    @property
    def certificate(self) -> Path:
        return self.folder / "server.crt"

    @property
    def key(self) -> Path:
        return self.folder / "server.key"

    def fingerprint(self) -> str:
        """What sites may compare the coordinator's key with; a renewed certificate has the same."""
        from cryptography.x509 import load_pem_x509_certificate

        try:
            return fingerprint_of(load_pem_x509_certificate(self.certificate.read_bytes()))
        except ValueError as problem:
            raise DataError(f"{self.certificate} cannot be read as a certificate ({problem}).") from None

    def site_keys(self) -> dict[str, bytes]:
        """The public keys by the names of the sites."""
        return {path.stem: path.read_bytes() for path in sorted((self.folder / "sites").glob("*.pub"))}


@dataclass(frozen=True)
class SiteFiles:
    """A site's files: the authority that it trusts, and its own key."""

    folder: Path

    def __post_init__(self) -> None:
        require(self.folder, "ca.crt", "site.key")

    @property
    def authority(self) -> Path:
        return self.folder / "ca.crt"

    @property
    def key(self) -> Path:
        return self.folder / "site.key"


def fingerprint_of(certificate: Any) -> str:
    """The hash of a certificate's public key, as a text."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    public = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return f"sha256:{hashlib.sha256(public).hexdigest()}"


class PinnedContext(ssl.SSLContext):
    """TLS that looks at the coordinator's key in every handshake, before anything is sent."""

    allowed: str | None = None  # the fingerprint that the key must have; None: any
    found: str | None = None  # the fingerprint of the last handshake

    def wrap_socket(self, *words: Any, **more: Any) -> ssl.SSLSocket:
        """Shake hands; refuse another key than the allowed one."""
        from cryptography.x509 import load_der_x509_certificate

        made = super().wrap_socket(*words, **more)
        self.found = fingerprint_of(load_der_x509_certificate(made.getpeercert(binary_form=True) or b""))
        if self.allowed not in (None, self.found):
            made.close()
            raise ssl.SSLCertVerificationError("the certificate has another key")
        return made


def pinned(authority: Path, allowed: str | None) -> PinnedContext:
    """TLS that trusts this authority only, and only this key if one is given."""
    context = PinnedContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=authority.read_text(encoding="ascii"))
    except (ssl.SSLError, ValueError) as problem:
        raise DataError(f"{authority} cannot be read as a certificate ({problem}).") from None
    context.allowed = allowed
    return context


def require(folder: Path, *names: str, flag: str = "--tls") -> None:
    """Refuse a folder in which one of these files is missing."""
    for name in names:
        if not (folder / name).is_file():
            raise DataError(
                f"{flag} {folder}: there is no {name}. `fedwinnow certificates` makes a folder for the coordinator and "
                f"one for each site."
            )
