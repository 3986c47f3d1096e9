"""Whether a request is signed by a site that is known here; its headers say so before its body is read."""

from __future__ import annotations

import base64
import binascii
import datetime
from collections.abc import Iterable, Mapping
from typing import Any

from fedwinnow.deployment.flower_private import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLEET_HTTP_SIGNATURE_HEADER,
    SYSTEM_TIME_TOLERANCE,
    TIMESTAMP_HEADER,
    TIMESTAMP_TOLERANCE,
    bytes_to_public_key,
    verify_signature,
)

NAMES = [name.encode() for name in (FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER, TIMESTAMP_HEADER)]


class Signatures:
    """The public keys of the sites, as Flower compares them."""

    def __init__(self, keys: Iterable[bytes]) -> None:
        self.keys = {key: bytes_to_public_key(key) for key in keys}

    def fit(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether a known key has signed the time of these headers, and that is about now (Flower asks the same)."""
        try:
            public, signature, signed = (headers[name] for name in NAMES)
            key: Any = self.keys[base64.b64decode(public, validate=True)]
            age = datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(signed.decode("ascii"))
            in_time = -SYSTEM_TIME_TOLERANCE < age.total_seconds() < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE
            return in_time and verify_signature(key, signed, base64.b64decode(signature, validate=True))
        except (KeyError, ValueError, TypeError, binascii.Error):
            return False
