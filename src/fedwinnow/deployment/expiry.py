"""When certificates end: told 30 days ahead, with the name of the file and what to do."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path

from fedwinnow.errors import DataError

AHEAD = datetime.timedelta(days=30)


def check_expiry(folder: Path, what_to_do: dict[str, str], say: Callable[[str], None]) -> None:
    """Warn of certificates of a folder that end soon; an error for one that has ended or has not begun."""
    from cryptography import x509

    now = datetime.datetime.now(datetime.UTC)
    for name, advice in what_to_do.items():
        path = folder / name
        try:
            found = x509.load_pem_x509_certificate(path.read_bytes())
        except ValueError as problem:
            raise DataError(f"{path}: is not a certificate ({problem}). {advice}") from None
        last, first = found.not_valid_after_utc, found.not_valid_before_utc
        if now > last:
            raise DataError(f"{path}: ended on {last:%Y-%m-%d}. {advice}")
        if now < first:
            raise DataError(
                f"{path}: begins on {first:%Y-%m-%d %H:%M} UTC, and this machine's clock says "
                f"{now:%Y-%m-%d %H:%M} UTC. Set the clock."
            )
        if now > last - AHEAD:
            say(f"{path}: ends on {last:%Y-%m-%d}, in {(last - now).days} days. {advice}")


COORDINATOR = {
    "ca.crt": "Make certificates in another folder, and give every site its new folder.",
    "server.crt": "Make a new one: fedwinnow certificates --renew --out FOLDER (it needs ca.key and its passphrase).",
}
SITE = {"ca.crt": "Ask the coordinator for a new folder of this site."}
