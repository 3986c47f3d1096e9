"""Payloads as Flower's array records and back: bit for bit, nothing pickled, everything checked."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from torch import Tensor

from fedwinnow.deployment.error_codes import for_others
from fedwinnow.deployment.foreign_text import one_line
from fedwinnow.errors import DataError
from fedwinnow.mathematics.payload import Payload

if TYPE_CHECKING:
    from fedwinnow.deployment.site import Site

RAW = "fedwinnow.raw"  # Flower's name for the format of an array: its bytes as in memory
ARRAYS, FACTS = "payload", "facts"
LONGEST_FACTS = 4 * 2**20  # letters; a simulation may have many clients at one site
LONGEST_NAME = 100  # letters in the name of a tensor

KINDS = {
    str(kind).removeprefix("torch."): kind
    for kind in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64),
    )
}


def to_records(facts: dict[str, Any], payload: Payload, packed: dict[int, tuple[Tensor, Array]]) -> RecordDict:
    """The content of a message: facts as one JSON text, and the tensors.

    `packed` remembers tensors that were packed before, because the same model usually goes to every site. It is keyed
    by id and keeps the tensors alive, so that no new tensor can have the id of an old one.
    """
    for value in payload.values():
        if id(value) not in packed:
            packed[id(value)] = (value, to_array(value))
    arrays = ArrayRecord({key: packed[id(value)][1] for key, value in payload.items()})
    return RecordDict({ARRAYS: arrays, FACTS: ConfigRecord({"json": json.dumps(facts)})})


def from_records(content: RecordDict) -> tuple[dict[str, Any], Payload]:
    """The facts and the tensors of a message; an error if it is not a message of fedwinnow."""
    arrays, found = content.get(ARRAYS), facts_in(content)
    if not isinstance(arrays, ArrayRecord):
        raise DataError("a message does not have the records of fedwinnow: another program may be talking to this run.")
    if strange := [key for key in arrays if key != one_line(key, LONGEST_NAME)]:
        raise DataError(
            f"a tensor has the name {one_line(strange[0], LONGEST_NAME)!r}; allowed: at most {LONGEST_NAME} letters, "
            f"without control characters."
        )
    return found, {key: from_array(key, array) for key, array in arrays.items()}


def facts_in(content: RecordDict) -> dict[str, Any]:
    """The facts of a message alone."""
    facts = content.get(FACTS)
    if not isinstance(facts, ConfigRecord):
        raise DataError("a message does not have the records of fedwinnow: another program may be talking to this run.")
    try:
        text = str(facts["json"])
        if len(text) > LONGEST_FACTS:
            raise DataError(f"the facts of a message have {len(text)} letters; allowed: {LONGEST_FACTS}.")
        found = json.loads(text)
    except (KeyError, ValueError, RecursionError) as problem:
        raise DataError(f"the facts of a message cannot be read ({problem!r}).") from None
    if not isinstance(found, dict):
        raise DataError("the facts of a message are not a table.")
    return found


def reply_of(site: Site, message: Message) -> Message:
    """The site's reply to a message."""
    try:
        facts, payload = from_records(message.content)
    except DataError as problem:
        said, sent = site.failed({}, for_others(problem, "message"))
    else:
        said, sent = site.answer(facts, payload)
    return Message(to_records(said | site.ledger.told(), sent, {}), reply_to=message)


def to_array(value: Tensor) -> Array:
    """One tensor as its bytes."""
    kind = str(value.dtype).removeprefix("torch.")
    if kind not in KINDS:
        raise DataError(f"a tensor of {value.dtype} was to be sent; allowed: {', '.join(KINDS)}.")
    flat = value.detach().cpu().contiguous().reshape(-1)
    return Array(kind, tuple(value.shape), RAW, flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")


def from_array(key: str, array: Array) -> Tensor:
    """One tensor from its bytes; the stated shape must match the number of bytes before memory is taken."""
    if array.stype != RAW or array.dtype not in KINDS:
        raise DataError(f"'{key}' came as {array.stype!r} of {array.dtype!r}; allowed: {RAW} of {', '.join(KINDS)}.")
    kind, shape = KINDS[array.dtype], tuple(array.shape)
    needed = math.prod(shape) * kind.itemsize
    if any(side < 0 for side in shape) or needed != len(array.data):
        raise DataError(f"'{key}' claims the shape {shape} of {array.dtype}, but {len(array.data)} bytes came.")
    if not array.data:
        return torch.empty(shape, dtype=kind)
    if kind is torch.bool:  # torch would not refuse bytes other than 0 and 1
        return torch.frombuffer(bytearray(array.data), dtype=torch.uint8).ne(0).reshape(shape)
    return torch.frombuffer(bytearray(array.data), dtype=kind).reshape(shape)
