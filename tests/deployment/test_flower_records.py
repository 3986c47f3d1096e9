"""Payloads become array records and come back bit for bit; what a message claims is checked."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("flwr", reason="the extra 'flower' is not installed: pip install '.[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedwinnow.deployment.flower_records import (
    ARRAYS,
    FACTS,
    KINDS,
    LONGEST_FACTS,
    MOST_BESIDE,
    from_array,
    from_records,
    to_array,
    to_records,
)
from fedwinnow.errors import DataError


def bits(value: torch.Tensor) -> bytes:
    return bytes(value.contiguous().reshape(-1).view(torch.uint8).tolist()) if value.numel() else b""


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (2, 3)])
def test_every_kind_of_number_comes_back_bit_for_bit(kind: str, shape: tuple[int, ...]) -> None:
    count = torch.Size(shape).numel()
    raw = torch.arange(count * KINDS[kind].itemsize, dtype=torch.int64).mul(37).add(200).to(torch.uint8)
    if kind == "bool":
        raw = raw % 2
    value = raw.view(KINDS[kind]).reshape(shape) if count else torch.empty(shape, dtype=KINDS[kind])
    back = from_array("x", to_array(value))
    assert back.dtype == value.dtype
    assert back.shape == value.shape
    assert bits(back) == bits(value)


def test_odd_numbers_and_odd_layouts() -> None:
    strange = torch.tensor([float("nan"), float("inf"), -0.0, 1e-45])
    assert bits(from_array("x", to_array(strange))) == bits(strange)
    turned = torch.arange(6).reshape(2, 3).T
    assert torch.equal(from_array("x", to_array(turned)), turned)


def test_a_message_keeps_facts_and_the_order_of_keys() -> None:
    model = torch.arange(float(MOST_BESIDE))
    sent = {"c": torch.tensor([True, False]), "b": model, "a": torch.tensor(7), "none": torch.zeros(0, 3)}
    packed: dict[int, tuple[torch.Tensor, Array]] = {}
    first = to_records({"round": 1}, sent, packed)
    second = to_records({"round": 1}, {"b": model}, packed)
    facts, payload = from_records(first)
    assert facts == {"round": 1}
    assert list(payload) == ["c", "b", "a", "none"]
    assert all(torch.equal(payload[key], value) and payload[key].dtype == value.dtype for key, value in sent.items())
    assert list(first[ARRAYS]) == ["b"]  # the others are beside the facts
    assert first[ARRAYS]["b"].data is second[ARRAYS]["b"].data  # packed once


def test_small_tensors_are_sent_without_records_of_their_own_up_to_a_bound() -> None:
    many = {str(number): torch.full((MOST_BESIDE // 16,), float(number)) for number in range(7)}
    content = to_records({}, many, {})
    assert list(content[ARRAYS]) == ["4", "5", "6"]  # a quarter of the bound each
    assert list(to_records({}, {"0": many["0"]}, {})) == [FACTS]
    back = from_records(content)[1]
    assert list(back) == list(many)
    assert all(torch.equal(back[key], many[key]) for key in many)


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_small_tensor_of_every_kind_comes_back_bit_for_bit(kind: str) -> None:
    raw = (torch.arange(6 * KINDS[kind].itemsize) * 37 + 200) % (2 if kind == "bool" else 256)
    value = raw.to(torch.uint8).view(KINDS[kind]).reshape(2, 3)
    back = from_records(to_records({}, {"first": torch.ones(1), "x": value}, {}))[1]["x"]
    assert (back.dtype, back.shape, bits(back)) == (value.dtype, value.shape, bits(value))


@pytest.mark.parametrize(
    ("order", "data", "said"),
    [
        ('[["x", "float32", [1000000000000]]]', b"1234", "claims the shape"),
        ('[["x", "float32", [-1, -1]]]', b"1234", "claims the shape"),
        ('[["x", "float32", [-1, 0]]]', b"", "claims the shape"),
        ('[["x", "float32", [2]], ["y", "float32", [1]]]', b"12345678", "claims the shape"),
        ('[["x", "object", [1]]]', b"1234", "'object'"),
        ('[["x", "float32", [1]]]', b"12345678", "4 bytes of a message belong to no tensor"),
        ('[["x", "float32", [true]]]', b"1234", "cannot be read"),
        ('[["x", "float32", 1]]', b"1234", "cannot be read"),
        ('[["x", "float32"]]', b"1234", "cannot be read"),
        ('[[1, "float32", [1]]]', b"1234", "cannot be read"),
        ('{"x": 1}', b"1234", "cannot be read"),
        ("[" * 100_000, b"1234", "cannot be read"),
        ('[["x"]]', b"", "does not have the tensors that it names"),
        ('[["x", "float32", [0]], ["x", "float32", [0]]]', b"", "does not have the tensors that it names"),
        ('[["\\u001b[2J", "float32", [0]]]', b"", "a tensor has the name"),
    ],
)
def test_what_a_message_says_of_small_tensors_is_checked(order: str, data: bytes, said: str) -> None:
    with pytest.raises(DataError, match=said):
        from_records(RecordDict({FACTS: ConfigRecord({"json": "{}", "order": order, "tensors": data})}))


def test_a_record_that_the_list_does_not_name_is_refused() -> None:
    content = to_records({}, {"x": torch.zeros(MOST_BESIDE)}, {})
    assert list(content[ARRAYS]) == ["x"]
    more = ArrayRecord({"x": content[ARRAYS]["x"], "y": content[ARRAYS]["x"]})
    with pytest.raises(DataError, match="does not have the tensors that it names"):
        from_records(RecordDict({FACTS: content[FACTS], ARRAYS: more}))
    with pytest.raises(DataError, match="another program"):
        from_records(RecordDict({FACTS: content[FACTS], ARRAYS: ConfigRecord({"x": 1})}))


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (Array("float32", (10**12,), "fedwinnow.raw", b"1234"), "claims the shape"),
        (Array("float32", (-1, -1), "fedwinnow.raw", b"1234"), "claims the shape"),
        (Array("object", (1,), "fedwinnow.raw", b"1234"), "'object'"),
        (Array("float32", (1,), "numpy.ndarray", b"1234"), "numpy.ndarray"),
    ],
)
def test_a_claim_that_is_not_true_is_refused_before_room_is_made(array: Array, said: str) -> None:
    with pytest.raises(DataError, match=said):
        from_array("x", array)


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({ARRAYS: ArrayRecord(), FACTS: ConfigRecord({"json": "["})}),
        RecordDict({ARRAYS: ArrayRecord(), FACTS: ConfigRecord({"json": "[]"})}),
        RecordDict({ARRAYS: ArrayRecord(), FACTS: ConfigRecord()}),
    ],
)
def test_a_message_of_another_program_is_an_error(content: RecordDict) -> None:
    with pytest.raises(DataError):
        from_records(content)


def test_facts_of_many_letters_are_not_read() -> None:
    content = to_records({"error": "x" * LONGEST_FACTS}, {}, {})
    with pytest.raises(DataError, match=r"the facts of a message have \d+ letters; allowed: 4194304"):
        from_records(content)
