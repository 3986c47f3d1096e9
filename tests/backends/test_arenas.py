"""How payloads travel."""

from __future__ import annotations

import errno
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedwinnow.backends import shared_memory
from fedwinnow.backends.host_as_text import describe_host
from fedwinnow.backends.processes import Processes, Shared
from fedwinnow.backends.shared_memory import Arenas, OpenedArrays, SharedArrays, plan, read, write
from fedwinnow.errors import RunError
from fedwinnow.experiment.prepare import prepare
from fedwinnow.experiment.settings import Experiment
from fedwinnow.federation.host import Task

KINDS = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(KINDS), st.lists(st.integers(0, 4), max_size=4), st.booleans()), max_size=5),
    st.integers(0, 2**32 - 1),
)
def test_whatever_is_written_is_read(wanted, seed):
    generator = torch.Generator().manual_seed(seed)
    payload = {}
    for number, (dtype, shape, turned) in enumerate(wanted):
        value = torch.randint(0, 2 if dtype == torch.bool else 100, shape, generator=generator).to(dtype)
        payload[f"tensor {number}"] = value.movedim(0, -1) if turned and value.dim() > 1 else value
    entries, size = plan(payload)
    buffer = memoryview(bytearray(size + 1))
    write(buffer, payload, json.loads(json.dumps(entries)))
    found = read(buffer, entries)
    assert list(found) == list(payload)
    for key, value in payload.items():
        assert found[key].dtype == value.dtype
        assert found[key].shape == value.shape
        assert found[key].stride() == value.stride() or value.numel() == 0
        assert torch.equal(found[key], value)


def test_a_slice_travels_without_the_rest():
    whole = torch.arange(1000.0).view(10, 100)
    entries, size = plan({"x": whole[:, :2]})
    assert size == 128  # 20 numbers of 4 bytes, in steps of 64
    buffer = memoryview(bytearray(size))
    write(buffer, {"x": whole[:, :2]}, entries)
    assert torch.equal(read(buffer, entries)["x"], whole[:, :2])


def test_arenas_are_used_again_and_grow():
    arenas = Arenas()
    try:
        small, large = arenas.take(10), arenas.take(10**6)
        assert large.size >= 10**6
        name = large.segment.name
        arenas.give_back([small, large])
        assert arenas.take(10) is small
        assert arenas.take(10**6) is large
        assert large.segment.name == name
        arenas.give_back([small, large])
        assert arenas.take(2 * 10**6 + 5) is large
        assert large.size >= 2 * 10**6 + 5
        assert large.segment.name != name
        assert len(arenas.all) == 2
    finally:
        arenas.close()


def test_what_several_clients_are_sent_is_written_once():
    arenas = Arenas()
    try:
        shared, weights = Shared(arenas), torch.arange(5.0)
        sent = [shared.split({"weights": weights, "own": torch.tensor(float(client))}) for client in range(4)]
        places = [parcels[0] for parcels, _ in sent]
        assert all(place == places[0] for place in places)
        assert [len(mine) for _, mine in sent] == [0, 1, 1, 1]  # the first client's own went along with the weights
        assert len({str(parcels[1][0]) for parcels, _ in sent[1:]}) == 3
        weights += 1  # another content, so another place
        changed = shared.split({"weights": weights})[0][0]
        assert changed != places[0]
        assert torch.equal(read(arenas.all[0].buffer, [places[0][1]])["weights"], torch.arange(5.0))
    finally:
        arenas.close()


def test_no_room_is_said_in_words(monkeypatch, nothing_left):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shared_memory.os, "posix_fallocate", full, raising=False)
    if not shared_memory.RAM_DISK.is_dir():
        pytest.skip("this system keeps shared memory elsewhere")
    with pytest.raises(RunError, match=r"no room for 5\.0 MB.*No space left.*--backend serial"):
        Arenas().take(5 * 10**6)
    nothing_left()


# --- with workers --------------------------------------------------------------------------------------------------


def task(client, **payload):
    return Task(client, "train", 1, 0, payload)


def test_any_payload_comes_back(echo):
    payload = {
        "a": torch.randn(3, 4, 5, 6).to(memory_format=torch.channels_last),
        "empty": torch.zeros(0, 7),
        "single": torch.tensor(True),
        "half": torch.ones(3, dtype=torch.bfloat16),
    }
    [answer] = echo.exchange([task(4, **payload)])
    assert answer.client == 4
    assert answer.error is None
    assert list(answer.reply) == list(payload)
    assert all(torch.equal(answer.reply[key], value) for key, value in payload.items())
    assert answer.reply["a"].stride() == payload["a"].stride()
    assert answer.notes["client"] == 4


def test_replies_larger_than_ever_before(echo):
    for length in (10, 10**5, 10, 10**6):
        sent = [task(client, length=torch.tensor(length + client)) for client in range(6)]
        answers = list(echo.exchange(sent))
        assert [answer.client for answer in answers] == list(range(6))
        for client, answer in enumerate(answers):
            assert torch.equal(answer.reply["grown"], torch.arange(length + client))
    assert len(echo.arenas.all) <= 2 * 4 + 2  # a question and an answer for each open task, and those for everybody
    assert len(echo.arenas.free) == len(echo.arenas.all)


def test_replies_stay_as_they_are(echo):
    weights = torch.arange(1000.0)
    [first] = echo.exchange([task(0, weights=weights)])
    list(echo.exchange([task(client, weights=weights * 0) for client in range(8)]))
    assert torch.equal(first.reply["weights"], torch.arange(1000.0))


def test_a_client_cannot_spoil_what_others_are_sent(echo):
    weights = torch.arange(1000.0)
    answers = list(echo.exchange(Task(client, "spoil", 1, 0, {"weights": weights}) for client in range(4)))
    assert all(bool((answer.reply["weights"] == 0).all()) for answer in answers)
    answers = list(echo.exchange(task(client, weights=weights) for client in range(4)))
    assert all(torch.equal(answer.reply["weights"], torch.arange(1000.0)) for answer in answers)


def test_tasks_are_made_when_there_is_room(echo):
    pulled = []

    def tasks():
        for client in range(20):
            pulled.append(client)
            yield task(client, x=torch.zeros(1))

    for number, _ in enumerate(echo.exchange(tasks())):
        assert len(pulled) <= number + 2 * 2
    assert pulled == list(range(20))


def test_an_exchange_that_is_left_early_harms_nothing(echo):
    for _ in range(5):
        exchange = echo.exchange(task(client, x=torch.tensor(1)) for client in range(20))
        next(exchange)
        exchange.close()
    answers = list(echo.exchange(task(client, x=torch.tensor(client)) for client in range(20)))
    assert [int(answer.reply["x"]) for answer in answers] == list(range(20))


# --- what a worker is told -----------------------------------------------------------------------------------------


def test_arrays_are_stored_once_and_read_only(tmp_path):
    array = np.arange(12).reshape(3, 4)
    np.save(tmp_path / "mapped.npy", array)
    mapped = np.load(tmp_path / "mapped.npy", mmap_mode="r")
    shared, opened = SharedArrays(), OpenedArrays()
    try:
        described = [shared.describe(one) for one in (array, array, mapped, mapped[1:])]
        assert described[0] == described[1]
        assert described[2]["file"].endswith("mapped.npy")
        assert len(shared.segments) == 2  # a piece of a mapped file is copied
        found = [opened.open(json.loads(json.dumps(one))) for one in described]
        for one, wanted in zip(found, (array, array, array, array[1:]), strict=True):
            assert np.array_equal(one, wanted)
            assert not one.flags.writeable
        texts = ("a", "ü", "\udc80", "")
        assert opened.texts(shared.describe_texts(texts)) == texts
        del found, one
    finally:
        opened.close()
        shared.close()


def test_workers_are_not_told_the_truth(tmp_path, make_host):
    settings = {"noise": "constant:rate=0.5", "method": "fedavg"}
    scene = prepare(Experiment(**settings)).scene
    arrays = SharedArrays()
    try:
        text = json.dumps(describe_host(make_host(**settings), arrays))
        stored = [one for one, _ in arrays.known.values()]
        assert any(np.array_equal(one, scene.given) for one in stored)
        assert not any(np.array_equal(one, scene.true) for one in stored)
        assert not any(np.array_equal(one, scene.wrong) for one in stored)
        assert "true" not in text.replace('"mixed_precision": true', "")
    finally:
        arrays.close()


def test_workers_of_a_lent_crew_outlive_the_backend(make_host, crews, material):
    for method in ("echo.py", "two_questions.py", "echo.py"):
        backend = Processes(make_host(method=str(material / method)), 1, crews[1])
        backend.close()
        backend.close()
    assert all(process.is_alive() for process in crews[1].processes)
