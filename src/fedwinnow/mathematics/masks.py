"""Keys, masks and signatures for sums that nobody can take apart: X25519, HKDF, ChaCha20, Ed25519 or ECDSA.

Every primitive is that of the package `cryptography`. Keys live for one sum, so no key is used with two nonces.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedwinnow.errors import DataError, missing_extra
from fedwinnow.mathematics.fixed_point import Ring

try:
    from cryptography.exceptions import InvalidSignature, InvalidTag
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, x25519
    from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError:
    raise missing_extra("secure", "--secure-sums") from None

KEY = 32  # bytes
TAG = 16  # bytes that encryption adds
CURVE = 48  # bytes of each half of a signature with a key of the curve P-384
Draw = Callable[[str, int], bytes]  # purpose, how many -> random bytes


def from_system(purpose: str, count: int) -> bytes:
    """Random bytes in earnest."""
    return os.urandom(count)


def from_seed(seed: int, who: str) -> Draw:
    """Bytes for a simulation, the same for the same seed and purpose: whoever knows the seed knows them."""

    def draw(purpose: str, count: int) -> bytes:
        text = f"fedwinnow simulation\n{seed}\n{who}\n{purpose}".encode()
        return hashlib.shake_256(text).digest(count)

    return draw


@dataclass(frozen=True)
class KeyPair:
    """Keys with which two sites agree on a secret."""

    secret: bytes
    public: bytes

    @classmethod
    def of(cls, secret: bytes) -> KeyPair:
        """The pair with this secret half."""
        made = x25519.X25519PrivateKey.from_private_bytes(secret)
        return cls(secret, made.public_key().public_bytes_raw())

    def agreed(self, public: bytes, purpose: bytes) -> bytes:
        """A secret key that only the owners of the two pairs know; raises ValueError for what is no public key."""
        mine = x25519.X25519PrivateKey.from_private_bytes(self.secret)
        shared = mine.exchange(x25519.X25519PublicKey.from_public_bytes(public))
        return expanded(shared, purpose)


def expanded(secret: bytes, purpose: bytes) -> bytes:
    """A key for one purpose."""
    made: bytes = HKDF(algorithm=hashes.SHA256(), length=KEY, salt=None, info=purpose).derive(secret)
    return made


def mask(key: bytes, length: int) -> Ring:
    """So many integers modulo 2^64 that look random to whoever does not know the key."""
    stream = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(8 * length))
    return np.frombuffer(stream, "<u8").astype(np.uint64, copy=False)


def locked(key: bytes, text: bytes, about: bytes) -> bytes:
    """Text that only the owner of the key can read; `about` is not hidden, but must be the same when it is opened."""
    return bytes(ChaCha20Poly1305(key).encrypt(bytes(12), text, about))


def opened(key: bytes, text: bytes, about: bytes) -> bytes | None:
    """The text; None if it was made with another key, about something else, or was changed."""
    try:
        return bytes(ChaCha20Poly1305(key).decrypt(bytes(12), text, about))
    except InvalidTag:
        return None


# --- who says it -----------------------------------------------------------------------------------------------------


def signing_key(draw: Draw) -> Any:
    """A key to sign with, for a simulation."""
    return ed25519.Ed25519PrivateKey.from_private_bytes(draw("to sign", KEY))


def signature(key: Any, text: bytes) -> bytes:
    """The signature of a text, of the same length for all keys of one kind."""
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return bytes(key.sign(text))
    first, second = decode_dss_signature(key.sign(text, ec.ECDSA(hashes.SHA384())))
    return first.to_bytes(CURVE, "big") + second.to_bytes(CURVE, "big")


def is_signed(public: Any, made: bytes, text: bytes) -> bool:
    """Whether the owner of the public key has signed this text."""
    try:
        if isinstance(public, ed25519.Ed25519PublicKey):
            public.verify(made, text)
        else:
            halves = (int.from_bytes(made[:CURVE], "big"), int.from_bytes(made[CURVE:], "big"))
            public.verify(encode_dss_signature(*halves), text, ec.ECDSA(hashes.SHA384()))
    except (InvalidSignature, ValueError):
        return False
    return True


def public_key(raw: bytes, place: str) -> Any:
    """A site's public key from its file."""
    try:
        return serialization.load_ssh_public_key(raw)
    except (ValueError, TypeError) as problem:
        raise DataError(f"{place} cannot be read as a public key ({problem}).") from None


def private_key(raw: bytes, place: str) -> Any:
    """A site's own key from its file."""
    try:
        return serialization.load_ssh_private_key(raw, None)
    except (ValueError, TypeError) as problem:
        raise DataError(f"{place} cannot be read as a key ({problem}).") from None
