"""Making the certificates and keys of a federation: the first ones, those of a new site, new ones, and revoking one.

The authority signs the coordinator's certificate and nothing else. A site is known by the public key in `sites/`, so
that adding and revoking a site need no signature.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
from pathlib import Path
from typing import Any

from fedwinnow.deployment.keys import require
from fedwinnow.errors import DataError, UsageError, missing_extra
from fedwinnow.files import replacing

SITE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")
RESERVED = ("ca.crt", "ca.key", "server.crt", "server.key", "sites", "revoked")  # in the coordinator's folder
DAYS_OF_AUTHORITY, DAYS_OF_SERVER = 3650, 825
SHORTEST_PASSPHRASE = 12


def make_certificates(
    out: Path, hosts: tuple[str, ...], sites: tuple[str, ...], passphrase: bytes | None = None
) -> list[Path]:
    """Make a certificate authority, the coordinator's folder and one folder per site; returns the files written.

    The authority's key is kept only under a passphrase; without one it is forgotten here.
    """
    refuse_unusable(out, hosts, sites)
    keys, form = cryptography()
    authority_key, server_key = keys(), keys()
    authority = certificate("fedwinnow authority", authority_key, authority_key, None, ())
    server = certificate(hosts[0], server_key, authority_key, authority, hosts)
    written = [
        write(out / "ca.crt", authority.public_bytes(form.Encoding.PEM)),
        write(out / "server.crt", server.public_bytes(form.Encoding.PEM)),
        write(out / "server.key", private(server_key, form.PrivateFormat.PKCS8), secret=True),
    ]
    if passphrase is not None:
        written.append(write(out / "ca.key", private(authority_key, form.PrivateFormat.PKCS8, passphrase), secret=True))
    for name in sites:
        written += make_site(out, name)
    for name in sites:  # so that sites know each other in secure sums
        written += [write(out / name / "sites" / f"{one}.pub", public_of(out, one)) for one in sites]
    return written


def public_of(out: Path, name: str) -> bytes:
    """The public key of a site in the coordinator's folder."""
    return (out / "sites" / f"{name}.pub").read_bytes()


def add_site(out: Path, name: str) -> list[Path]:
    """Make a key and a folder for one more site; a name that was used before is refused, also a revoked one."""
    require(out, "ca.crt", "server.crt", "server.key", flag="--out")
    refuse_names((name,), "--add")
    there = {path.stem.lower() for folder in ("sites", "revoked") for path in (out / folder).glob("*.pub")}
    if name.lower() in there or (out / name).exists():
        raise UsageError(
            f"--add {name} was given, but {out} has or had a site of that name. Choose another name: keys are never "
            f"overwritten, and a ledger must not mean two sites by one name."
        )
    written = make_site(out, name)
    public = sorted(path.stem for path in (out / "sites").glob("*.pub"))
    written += [write(out / name / "sites" / f"{one}.pub", public_of(out, one)) for one in public]
    here = [one for one in public if one != name and (out / one / "sites").is_dir()]
    return written + [write(out / one / "sites" / f"{name}.pub", public_of(out, name)) for one in here]


def revoke_site(out: Path, name: str) -> Path:
    """Take a site's public key out of `sites/`, so that the next `serve` does not know it; it is kept in `revoked/`."""
    require(out, "ca.crt", "server.crt", "server.key", flag="--out")
    there = {path.stem: path for path in (out / "sites").glob("*.pub")}
    if name not in there and (out / "revoked" / f"{name}.pub").is_file():
        raise UsageError(f"--revoke {name} was given; it was revoked already, and cannot join.")
    if name not in there:
        raise UsageError(f"--revoke {name} was given; {out} has the sites {', '.join(sorted(there)) or '(none)'}.")
    target = out / "revoked" / f"{name}.pub"
    target.parent.mkdir(exist_ok=True)
    os.replace(there[name], target)
    return target


def renew_server(out: Path, passphrase: bytes) -> datetime.datetime:
    """A new certificate of the coordinator, for the same key and hosts, signed by the kept authority; its last day."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    refuse_without_authority(out)
    _, form = cryptography()
    authority, old = (x509.load_pem_x509_certificate((out / name).read_bytes()) for name in ("ca.crt", "server.crt"))
    try:
        signer = load_pem_private_key((out / "ca.key").read_bytes(), passphrase)
    except (ValueError, TypeError):
        raise UsageError(f"--renew: the passphrase does not open {out / 'ca.key'}, or the file is damaged.") from None
    if signer.public_key() != authority.public_key():
        raise DataError(f"--renew: {out / 'ca.key'} is not the key of {out / 'ca.crt'}. Restore the pair.")
    key = load_pem_private_key((out / "server.key").read_bytes(), None)
    named = old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    made = certificate(common_name(old), key, signer, authority, tuple(str(each.value) for each in named))
    with replacing(out / "server.crt") as stream:
        stream.write(made.public_bytes(form.Encoding.PEM))
    last: datetime.datetime = made.not_valid_after_utc
    return last


def refuse_without_authority(out: Path) -> None:
    """Refuse to renew where nothing can be signed."""
    require(out, "ca.crt", "server.crt", "server.key", flag="--out")
    if not (out / "ca.key").is_file():
        raise DataError(
            f"--renew: there is no ca.key in {out}: the authority's key was not kept, so nothing new can be signed. "
            f"Make certificates in another folder with --passphrase, and give every site its new folder."
        )


# --- parts ---------------------------------------------------------------------------------------------------------


def cryptography() -> tuple[Any, Any]:
    """How to make a key, and the forms in which keys are written."""
    try:
        from cryptography.hazmat.primitives import serialization as form
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise missing_extra("flower", "making certificates") from None
    return lambda: ec.generate_private_key(ec.SECP384R1()), form


def private(key: Any, kind: Any, passphrase: bytes | None = None) -> bytes:
    """A private key as text, under a passphrase if there is one."""
    _, form = cryptography()
    lock = form.NoEncryption() if passphrase is None else form.BestAvailableEncryption(passphrase)
    return bytes(key.private_bytes(form.Encoding.PEM, kind, lock))


def make_site(out: Path, name: str) -> list[Path]:
    """The key of a site: the public half for the coordinator, and the site's own folder."""
    keys, form = cryptography()
    key = keys()
    public = bytes(key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)) + b"\n"
    return [
        write(out / "sites" / f"{name}.pub", public),
        write(out / name / "ca.crt", (out / "ca.crt").read_bytes()),
        write(out / name / "site.key", private(key, form.PrivateFormat.OpenSSH), secret=True),
    ]


def refuse_unusable(out: Path, hosts: tuple[str, ...], sites: tuple[str, ...]) -> None:
    """Refuse names that cannot be those of hosts or folders, and a folder that is not empty."""
    refuse_names(sites, "--sites")
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


def refuse_names(sites: tuple[str, ...], flag: str) -> None:
    """Refuse names of sites that cannot be those of folders."""
    for name in sites:
        if not SITE_NAME.fullmatch(name) or name.lower() in RESERVED:
            raise UsageError(
                f"{flag} {name} was given; allowed: at most 60 of A-Z, a-z, 0-9, '.', '-' and '_', a letter or digit "
                f"first, and none of {', '.join(RESERVED)}."
            )


def certificate(name: str, key: Any, signer: Any, issuer: Any, hosts: tuple[str, ...]) -> Any:
    """A certificate: the authority's own (`issuer` is None), or one that the authority signs.

    One that is signed does not outlive the authority: nobody would accept it after that.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import NameOID

    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    now = datetime.datetime.now(datetime.UTC)
    last = now + datetime.timedelta(days=DAYS_OF_AUTHORITY if issuer is None else DAYS_OF_SERVER)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(last if issuer is None else min(last, issuer.not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
    )
    if hosts:
        made = made.add_extension(x509.SubjectAlternativeName([alternative(host) for host in hosts]), critical=False)
    return made.sign(signer, hashes.SHA384())


def common_name(made: Any) -> str:
    """The name of a certificate."""
    from cryptography.x509.oid import NameOID

    return str(made.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


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
