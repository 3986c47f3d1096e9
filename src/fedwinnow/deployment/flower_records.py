"""Payloads as Flower's array records and back: bit for bit, nothing pickled, everything checked."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
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
MOST_BESIDE = 2**17  # bytes of small tensors that travel beside the facts
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

    Small tensors stand beside the facts: each array record costs several requests over the network. `packed` remembers
    large ones that were packed before, because the same model usually goes to every site. It is keyed by id and keeps
    the tensors alive, so that no new tensor can have the id of an old one.
    """
    order: list[list[Any]] = []  # of the keys; for a small tensor also its kind and shape
    beside, room, large = list[bytes](), MOST_BESIDE, dict[str, Array]()
    for key, value in payload.items():
        size = value.numel() * value.element_size()
        if size <= room:
            kind, data = kind_of(value), bytes_of(value)
            order.append([key, kind, list(value.shape)])
            beside.append(data)
            room -= size
            continue
        if id(value) not in packed:
            packed[id(value)] = (value, to_array(value))
        order.append([key])
        large[key] = packed[id(value)][1]
    config = ConfigRecord({"json": json.dumps(facts), "order": json.dumps(order), "tensors": b"".join(beside)})
    content = RecordDict({FACTS: config})
    if large:
        content[ARRAYS] = ArrayRecord(large)
    return content


def from_records(content: RecordDict) -> tuple[dict[str, Any], Payload]:
    """The facts and the tensors of a message; an error if it is not a message of fedwinnow."""
    found, arrays = facts_in(content), content.get(ARRAYS, ArrayRecord())
    if not isinstance(arrays, ArrayRecord):
        raise another_program()
    order, data = layout_in(content[FACTS])
    if strange := [key for key, *_ in order if key != one_line(key, LONGEST_NAME)]:
        raise DataError(
            f"a tensor has the name {one_line(strange[0], LONGEST_NAME)!r}; allowed: at most {LONGEST_NAME} letters, "
            f"without control characters."
        )
    if {key for key, *form in order if not form} != set(arrays) or len({key for key, *_ in order}) < len(order):
        raise DataError("a message does not have the tensors that it names.")
    payload: Payload = {}
    for key, *form in order:
        if form:
            kind, shape = form
            size = size_of(key, kind, shape, len(data))
            payload[key], data = tensor_of(key, kind, shape, data[:size]), data[size:]
        else:
            payload[key] = from_array(key, arrays[key])
    if data:
        raise DataError(f"{len(data)} bytes of a message belong to no tensor.")
    return found, payload


def layout_in(config: Any) -> tuple[list[list[Any]], bytes]:
    """Which tensors a message has, in their order, and the bytes of the small ones."""
    try:
        order, data = str(config["order"]), config["tensors"]
        if len(order) > LONGEST_FACTS or not isinstance(data, bytes):
            raise ValueError("it is too long, or has no bytes")
        found = json.loads(order)
        if not isinstance(found, list) or not all(is_place(one) for one in found):
            raise ValueError("it is no list of tensors")
    except (KeyError, ValueError, RecursionError) as problem:
        raise DataError(f"the list of the tensors of a message cannot be read ({problem!r}).") from None
    return found, data


def is_place(one: Any) -> bool:
    """Whether this is the name of a tensor, or the name, kind and shape of a small one."""
    if not isinstance(one, list) or len(one) not in (1, 3) or not all(isinstance(text, str) for text in one[:2]):
        return False
    return len(one) == 1 or (isinstance(one[2], list) and all(type(side) is int for side in one[2]))


def another_program() -> DataError:
    """The error for a message that fedwinnow did not write."""
    return DataError("a message does not have the records of fedwinnow: another program may be talking to this run.")


def facts_in(content: RecordDict) -> dict[str, Any]:
    """The facts of a message alone."""
    facts = content.get(FACTS)
    if not isinstance(facts, ConfigRecord):
        raise another_program()
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


def kind_of(value: Tensor) -> str:
    """The name of a tensor's kind of numbers; an error for one that does not travel."""
    kind = str(value.dtype).removeprefix("torch.")
    if kind not in KINDS:
        raise DataError(f"a tensor of {value.dtype} was to be sent; allowed: {', '.join(KINDS)}.")
    return kind


def bytes_of(value: Tensor) -> bytes:
    """The numbers of a tensor as they are in memory."""
    flat = value.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def to_array(value: Tensor) -> Array:
    """One tensor as its bytes."""
    return Array(kind_of(value), tuple(value.shape), RAW, bytes_of(value))


def from_array(key: str, array: Array) -> Tensor:
    """One tensor from its bytes."""
    if array.stype != RAW:
        raise DataError(f"'{key}' came as {array.stype!r} of {array.dtype!r}; allowed: {RAW} of {', '.join(KINDS)}.")
    shape = tuple(array.shape)
    if size_of(key, array.dtype, shape, len(array.data)) != len(array.data):
        raise untrue(key, array.dtype, shape, len(array.data))
    return tensor_of(key, array.dtype, shape, array.data)


def size_of(key: str, kind: str, shape: Sequence[int], there: int) -> int:
    """How many bytes a tensor has; its stated shape must not need more than there are, before memory is taken."""
    if kind not in KINDS:
        raise DataError(f"'{key}' came as {kind!r}; allowed: {', '.join(KINDS)}.")
    needed = math.prod(shape) * KINDS[kind].itemsize
    if any(side < 0 for side in shape) or needed > there:
        raise untrue(key, kind, shape, there)
    return needed


def untrue(key: str, kind: str, shape: Sequence[int], there: int) -> DataError:
    """The error for a shape that does not fit the bytes."""
    return DataError(f"'{key}' claims the shape {str(tuple(shape))[:200]} of {kind}, but {there} bytes came.")


def tensor_of(key: str, name: str, shape: Sequence[int], data: bytes) -> Tensor:
    """A tensor from as many bytes as its shape needs."""
    kind = KINDS[name]
    if not data:
        return torch.empty(tuple(shape), dtype=kind)
    if kind is torch.bool:  # torch would not refuse bytes other than 0 and 1
        return torch.frombuffer(bytearray(data), dtype=torch.uint8).ne(0).reshape(tuple(shape))
    return torch.frombuffer(bytearray(data), dtype=kind).reshape(tuple(shape))
