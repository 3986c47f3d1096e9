"""What sites and server tell each other for a secure sum: the phases, who must be left, and tensors of bytes.

The protocol is that of Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning, CCS
2017, with the round that protects against a server that does not keep to it. A sum has five phases, each a question to
all sites that have answered the one before:

`keys`      every site draws two key pairs for this sum, and signs their public halves with the key it is known by.
`shares`    every site is told all of them, checks them, and gives every other site an encrypted share of two secrets:
            its key for masks, and the seed of a mask of its own.
`masked`    every site is handed the shares meant for it, answers the question of the method, and sends the answer plus
            its own mask, plus a mask that it shares with each other site; in the sum the latter cancel.
`agree`     every site is told whose answers are in the sum, and signs that, with what it was asked.
`unmask`    every site is handed these signatures, checks that enough sites were told the same, and sends its shares:
            of the own mask for a site in the sum, of the key for one that has left since `shares`; never both.

The masks that two sites share depend on what each was asked: the run, the round, the method's function, everything that
the server sent along (the global model), all members with their keys, and the form of the answer. So they cancel only
among sites that were asked the same, and a server that sends one site another model gets noise.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterable, Sequence
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from fedwinnow.errors import RunError
from fedwinnow.mathematics.masks import KEY, TAG
from fedwinnow.mathematics.payload import Payload
from fedwinnow.mathematics.shamir import SIZE

Phase = Literal["keys", "shares", "masked", "agree", "unmask"]
PHASES: tuple[Phase, ...] = get_args(Phase)
LEAST = 3  # sites in a sum: with two, each could subtract its own part
ENVELOPE = 2 * SIZE + TAG  # bytes of two encrypted shares


class Malformed(Exception):
    """A message that is not as it should be; the text says what is wrong."""


class SumRefused(RunError):
    """A site does not go on with a sum: the server has told it what an honest one would not."""


class SumFailed(RunError):
    """There is no sum: too few sites are left, or what they sent does not fit together."""


def threshold_of(share: float, members: int) -> int:
    """How many of so many sites must stay to the end: more than this share of them, and at least three."""
    return max(LEAST, math.floor(share * members + 1e-9) + 1)


def digest(*parts: bytes | str | int) -> bytes:
    """A hash of these parts in this order, which no other parts have."""
    found = hashlib.sha256()
    for part in parts:
        raw = part if isinstance(part, bytes) else str(part).encode()
        found.update(len(raw).to_bytes(8, "big") + raw)
    return found.digest()


def transcript(session: bytes, share: float, members: Sequence[tuple[int, str, bytes]]) -> bytes:
    """Stands for one sum among these sites with these keys: everything later is bound to it."""
    return digest("fedwinnow sum", session, repr(share), *(part for member in members for part in member))


def advert(session: bytes, number: int, name: str, keys: bytes) -> bytes:
    """What a site signs with its public keys."""
    return digest("fedwinnow keys", session, number, name, keys)


def survivors_text(about: bytes, asked: bytes, told: Iterable[int], survivors: Iterable[int]) -> bytes:
    """What a site signs: what it was asked, the sites in the sum, and those whose shares it was handed."""
    return digest("fedwinnow survivors", about, asked, json.dumps([list(told), list(survivors)]))


def asked_text(question: bytes, form: object) -> bytes:
    """Stands for what a site was asked, and the form in which it answers."""
    return digest("fedwinnow asked", question, json.dumps(form, separators=(",", ":")))


class Questions:
    """Hashes of what the server sends along with a question; the same tensors are hashed once."""

    def __init__(self) -> None:
        self.known: Payload = {}
        self.hash = hash_of({})

    def of(self, payload: Payload) -> bytes:
        """The hash of this content."""
        same = payload.keys() == self.known.keys() and all(payload[key] is self.known[key] for key in payload)
        if not same:
            self.known, self.hash = dict(payload), hash_of(payload)
        return self.hash


def hash_of(payload: Payload) -> bytes:
    """A hash of the keys, types, shapes and numbers."""
    parts: list[bytes | str] = []
    for key, value in sorted(payload.items()):
        plain = value.detach().cpu().contiguous()
        parts += [key, f"{plain.dtype} {tuple(plain.shape)}", plain.flatten().view(torch.uint8).numpy().tobytes()]
    return digest("fedwinnow question", *parts)


def noise_text(session: bytes, number: int, noise: bytes) -> bytes:
    """By this hash the server knows that it has put the seed of a site's own mask together rightly."""
    return digest("fedwinnow own mask", session, number, noise)


# --- tensors of bytes ------------------------------------------------------------------------------------------------


def as_row(raw: bytes) -> Tensor:
    """Bytes as a tensor."""
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8) if raw else torch.zeros(0, dtype=torch.uint8)


def as_rows(rows: Sequence[bytes]) -> Tensor:
    """Bytes of equal lengths as a table."""
    return torch.stack([as_row(row) for row in rows]) if rows else torch.zeros((0, 0), dtype=torch.uint8)


def row_in(payload: Payload, key: str, length: int | None = None) -> bytes:
    """The bytes under a key; raises Malformed."""
    value = payload.get(key)
    if value is None or value.dtype != torch.uint8 or value.dim() != 1 or len(value) != (length or len(value)):
        raise Malformed(f"'{key}' is not {length or 'a row of'} bytes")
    return value.numpy().tobytes()


def rows_in(payload: Payload, key: str, count: int, length: int | None = None) -> list[bytes]:
    """So many rows of bytes; raises Malformed."""
    value = payload.get(key)
    if count == 0:
        return []
    if value is None or value.dtype != torch.uint8 or value.dim() != 2 or len(value) != count:
        raise Malformed(f"'{key}' does not have {count} rows of bytes")
    if length is not None and value.shape[1] != length:
        raise Malformed(f"'{key}' has rows of {value.shape[1]} bytes, not {length}")
    return [np.ascontiguousarray(row).tobytes() for row in value.numpy()]


def numbers_in(payload: Payload, key: str) -> list[int]:
    """The numbers of sites, each larger than the one before; raises Malformed."""
    value = payload.get(key)
    if value is None or value.dtype != torch.int64 or value.dim() != 1:
        raise Malformed(f"'{key}' is no list of sites")
    found: list[int] = value.tolist()
    if any(later <= earlier for earlier, later in itertools.pairwise(found)):
        raise Malformed(f"'{key}' is not in order, or names a site twice")
    return found


def as_text(value: object) -> Tensor:
    """A plain value as bytes of JSON."""
    return as_row(json.dumps(value, separators=(",", ":")).encode())


def text_in(payload: Payload, key: str) -> object:
    """The plain value under a key; raises Malformed."""
    try:
        found: object = json.loads(row_in(payload, key))
    except (ValueError, RecursionError):
        raise Malformed(f"'{key}' cannot be read") from None
    return found


BOTH_KEYS = 2 * KEY
