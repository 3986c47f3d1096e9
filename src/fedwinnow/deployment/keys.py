"""Certificates and keys: the files they are in, and how `fedwinnow certificates` makes them."""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedwinnow.errors import DataError, UsageError, missing_extra

SITE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")
RESERVED = ("ca.crt", "server.crt", "server.key", "sites")  # what else lies in the coordinator's folder
DAYS = 825


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


def require(folder: Path, *names: str) -> None:
    """Refuse a folder in which one of these files is missing."""
    for name in names:
        if not (folder / name).is_file():
            raise DataError(
                f"--tls {folder}: there is no {name}. `fedwinnow certificates` makes a folder for the coordinator and "
                f"one for each site."
            )


def make_certificates(out: Path, hosts: tuple[str, ...], sites: tuple[str, ...]) -> list[Path]:
    """Make a certificate authority, the coordinator's folder and one folder per site; returns the files written."""
    refuse_unusable(out, hosts, sites)
    try:
        from cryptography.hazmat.primitives import serialization as form
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise missing_extra("flower", "making certificates") from None

    def private(key: Any, kind: form.PrivateFormat) -> bytes:
        return bytes(key.private_bytes(form.Encoding.PEM, kind, form.NoEncryption()))

    def public(key: Any) -> bytes:
        return bytes(key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)) + b"\n"

    authority_key, server_key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    authority = certificate("fedwinnow authority", authority_key, authority_key, None, ())
    server = certificate(hosts[0], server_key, authority_key, authority, hosts)
    written = [
        write(out / "ca.crt", authority.public_bytes(form.Encoding.PEM)),
        write(out / "server.crt", server.public_bytes(form.Encoding.PEM)),
        write(out / "server.key", private(server_key, form.PrivateFormat.PKCS8), secret=True),
    ]
    for name in sites:
        key = ec.generate_private_key(ec.SECP384R1())
        written += [
            write(out / "sites" / f"{name}.pub", public(key)),
            write(out / name / "ca.crt", authority.public_bytes(form.Encoding.PEM)),
            write(out / name / "site.key", private(key, form.PrivateFormat.OpenSSH), secret=True),
        ]
    return written


def refuse_unusable(out: Path, hosts: tuple[str, ...], sites: tuple[str, ...]) -> None:
    """Refuse names that cannot be those of hosts or folders, and a folder that is not empty."""
    for name in sites:
        if not SITE_NAME.fullmatch(name) or name.lower() in RESERVED:
            raise UsageError(
                f"--sites {name} was given; allowed: at most 60 of A-Z, a-z, 0-9, '.', '-' and '_', a letter or digit "
                f"first, and none of {', '.join(RESERVED)}."
            )
    if len({name.lower() for name in sites}) < len(sites):
        raise UsageError(f"--sites {' '.join(sites)} was given: two have the same name. Give each its own.")
    for host in hosts:
        if not re.fullmatch(r"[A-Za-z0-9.:*_-]+", host):
            raise UsageError(
                f"--host {host!r} was given; allowed: an address, or a name of A-Z, a-z, 0-9, '.', '-' and '_' (a name "
                f"with other letters in its xn-- form)."
            )
    if out.exists() and any(out.iterdir()):
        raise UsageError(f"--out {out} is not empty. Choose another folder: keys are never overwritten.")


def certificate(name: str, key: Any, signer: Any, issuer: Any, hosts: tuple[str, ...]) -> Any:
    """A certificate: the authority's own (`issuer` is None), or one that the authority signs."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import NameOID

    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
    )
    if hosts:
        made = made.add_extension(x509.SubjectAlternativeName([alternative(host) for host in hosts]), critical=False)
    return made.sign(signer, hashes.SHA384())


def alternative(host: str) -> Any:
    """A host as certificates name it: an address, or a name."""
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def write(path: Path, content: bytes, *, secret: bool = False) -> Path:
    """Write a new file; only its owner can read a secret one, from the first byte on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644), "wb") as stream:
        stream.write(content)
    return path
