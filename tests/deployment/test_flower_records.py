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
    model = torch.arange(3.0)
    packed: dict[int, tuple[torch.Tensor, Array]] = {}
    first = to_records({"round": 1}, {"b": model, "a": torch.tensor(7)}, packed)
    second = to_records({"round": 1}, {"b": model}, packed)
    facts, payload = from_records(first)
    assert facts == {"round": 1}
    assert list(payload) == ["b", "a"]
    assert torch.equal(payload["b"], model)
    assert first[ARRAYS]["b"].data is second[ARRAYS]["b"].data  # packed once


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
