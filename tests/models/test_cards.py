"""What concerns GPUs, on a machine without one: pretended cards, torch's meta device, and a process of its own.

The meta device has shapes and no numbers, so whoever waits for a number of it fails: as good a test that nothing waits
as there is without a card.
"""

from __future__ import annotations

import json
import subprocess
import sys
import types
from typing import Any

import pytest
import torch

from by_hand import one_client
from fedwinnow import device
from fedwinnow.device import Uploads
from fedwinnow.errors import UsageError
from fedwinnow.mathematics import two_gaussians
from fedwinnow.mathematics.strong_views import OPERATIONS, changed, patched, strong_view
from fedwinnow.mathematics.two_gaussians import climb, climb_together
from fedwinnow.mathematics.views import random_view
from fedwinnow.study.engine import jobs_for, make_engine, on_ray, wants_card
from fedwinnow.study.sweep import Work

SETTLED = """
import json, torch
from fedwinnow.device import settings_in_force, settle
before = torch.are_deterministic_algorithms_enabled()
settle(torch.device("cpu"))
untouched = torch.are_deterministic_algorithms_enabled() == before and torch.backends.cudnn.allow_tf32
settle(torch.device("cuda:1"))
print(json.dumps([untouched, settings_in_force(torch.device("cpu")), settings_in_force(torch.device("cuda"))]))
"""


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Any:
    """Pretend to have so many cards."""

    def pretend(count: int) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    monkeypatch.delenv("FEDWINNOW_DEVICE", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(device, "MINE", {})
    monkeypatch.setattr(device.tempfile, "gettempdir", lambda: str(tmp_path))
    yield pretend
    for stream in device.MINE.values():
        stream.close()


def test_the_settings_of_a_card_are_all_made_in_one_place() -> None:
    told = subprocess.run([sys.executable, "-c", SETTLED], capture_output=True, text=True, check=True)
    untouched, on_cpu, on_card = json.loads(told.stdout)
    assert untouched  # nothing of this changes what a processor computes
    assert on_cpu == {}
    assert on_card == {
        "deterministic_algorithms": True,
        "cudnn_deterministic": True,
        "cudnn_benchmark": False,
        "cudnn_tf32": False,
        "matmul_tf32": False,
        "cublas_workspace": ":4096:8",
    }


def test_each_process_takes_a_card_that_is_free(cards: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cards(2)
    assert device.own_card("cuda") == "cuda:0"
    assert device.own_card(None) == "cuda:0"  # it keeps its own
    first = dict(device.MINE)
    monkeypatch.setattr(device, "MINE", {})  # as another process sees it
    assert device.own_card(None) == "cuda:1"
    second = dict(device.MINE)
    monkeypatch.setattr(device, "MINE", {})
    assert device.own_card(None) in ("cuda:0", "cuda:1")  # all are taken: they are shared
    assert device.MINE == {}
    for stream in (*first.values(), *second.values()):
        stream.close()
    assert device.own_card("auto") == "cuda:0"  # whoever ends gives its card back


@pytest.mark.parametrize(("count", "asked"), [(0, None), (1, None), (1, "cuda"), (2, "cuda:1"), (2, "cpu"), (0, "cpu")])
def test_who_names_a_device_gets_it(cards: Any, count: int, asked: str | None) -> None:
    cards(count)
    assert device.own_card(asked) == asked
    assert device.MINE == {}


def test_two_shares_of_a_machine_do_not_take_each_other_for_one(cards: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cards(2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert device.own_card(None) == "cuda:0"
    other = dict(device.MINE)
    monkeypatch.setattr(device, "MINE", {})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")  # another job of the same user, whose cuda:0 is another card
    assert device.own_card(None) == "cuda:0"
    for stream in other.values():
        stream.close()


def test_runs_of_a_sweep_take_their_cards_only_where_several_go_at_a_time(
    cards: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    cards(2)
    devices: list[str | None] = []

    def play(experiment: Any, folder: Any, execution: Any, watchers: Any) -> dict[str, Any]:
        devices.append(execution.device)
        return {"last10": {"accuracy": 0.5}}

    monkeypatch.setattr("fedwinnow.study.sweep.play", play)
    job: Any = types.SimpleNamespace(folder=tmp_path, experiment=None, state=lambda: "new")
    execution: Any = device_of_runs()
    Work(execution, apart=True)(job)
    Work(execution, apart=False)(job)
    assert devices == ["cuda:0", None]


def device_of_runs() -> Any:
    from fedwinnow.experiment.play import Execution

    return Execution(resume=True)


def test_how_many_runs_go_at_a_time(cards: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedwinnow.study.engine.usable_cores", lambda: 8)
    assert jobs_for(None, "serial") == 8
    assert jobs_for("cpu", "processes:workers=3") == 2
    assert jobs_for("cpu", "processes") == 1
    assert make_engine("loky", "auto", None, "auto").backend == "serial"  # the cores are used already
    assert make_engine("loky", 1, None, "auto").backend == "auto"
    assert make_engine("dask:address=tcp://h:1", "auto").jobs == 1
    cards(3)
    assert jobs_for(None, "serial") == 3
    assert jobs_for("cuda:2", "serial") == 1
    assert jobs_for("cpu", "serial") == 8
    with pytest.raises(UsageError):
        make_engine("loky", 0)


class PretendedRay(types.ModuleType):
    """Notes what a task asks for, and does its work here."""

    def __init__(self, gpus: int) -> None:
        super().__init__("ray")
        self.gpus, self.asked = gpus, dict[str, Any]()
        self.exceptions = types.SimpleNamespace(WorkerCrashedError=RuntimeError)

    def init(self, **settings: Any) -> None: ...

    def shutdown(self) -> None: ...

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 8.0, **({"GPU": float(self.gpus)} if self.gpus else {})}

    def remote(self, **needs: Any) -> Any:
        self.asked = needs
        return lambda function: types.SimpleNamespace(remote=lambda *words: function(*words))

    def wait(self, waiting: list[Any]) -> tuple[list[Any], list[Any]]:
        return waiting[:1], waiting[1:]

    def get(self, one: Any) -> Any:
        return one


@pytest.mark.parametrize(
    ("gpus", "asked", "expected"), [(4, None, 1), (4, "cuda", 1), (4, "cpu", None), (0, None, None)]
)
def test_ray_is_asked_for_a_gpu_where_there_are_some(
    gpus: int, asked: str | None, expected: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FEDWINNOW_DEVICE", raising=False)
    ray = PretendedRay(gpus)
    monkeypatch.setitem(sys.modules, "ray", ray)
    assert list(on_ray(str, [1, 2], 1, device=asked)) == [(0, "1"), (1, "2")]
    assert ray.asked.get("num_gpus") == expected
    assert wants_card(asked) == (asked != "cpu")


# --- nothing waits for the card, and nothing is uploaded twice -----------------------------------------------------


@pytest.mark.parametrize("views", ["none", "flip", "crop_flip", "strong"])
def test_views_do_not_wait(views: str) -> None:
    images = torch.zeros((5, 12, 12, 3), dtype=torch.uint8, device="meta")
    assert random_view(images, views, torch.Generator().manual_seed(0)).shape == images.shape


@pytest.mark.parametrize("kind", range(len(OPERATIONS)))
def test_no_operation_of_a_strong_view_waits(kind: int) -> None:
    images = torch.zeros((3, 8, 8, 3), dtype=torch.uint8, device="meta")
    assert changed(images, torch.full((3,), kind), torch.zeros(3, device="meta")).shape == images.shape
    assert patched(images, torch.zeros((3, 3), device="meta")).shape == images.shape
    assert strong_view(images, torch.Generator()).shape == images.shape


def test_samples_are_uploaded_once_and_the_oldest_make_room() -> None:
    there = Uploads(torch.device("meta"), limit=100)
    first, second = torch.zeros(10), torch.ones(10)  # 40 bytes each
    kept = there.get("trained 1", first)
    assert kept.device.type == "meta"
    assert there.get("trained 1", first) is kept
    there.get("trained 2", second)
    assert there.get("trained 1", first) is kept
    there.get("trained 3", second)  # 120 bytes are too many, and 2 was not used for longest
    assert list(there.held) == ["trained 1", "trained 3"]
    assert there.size == 80
    there.get("large", torch.zeros(1000))
    assert list(there.held) == ["large"]  # what is in use stays, whatever its size
    assert not Uploads(torch.device("cpu")).useful


def test_other_samples_of_a_client_are_not_those_that_stayed() -> None:
    client = one_client([[0.0], [1.0], [2.0], [3.0]], [0, 0, 0, 1])
    client.ready = torch.full((4, 1), 9.0)
    assert client.resident is client.ready
    client.least_count = 2  # class 1 has one sample
    fewer = client.told().resident
    assert fewer is not None
    assert fewer.tolist() == [[0.0], [1.0], [2.0]]


def test_both_ways_to_climb_end_at_the_same_place(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = torch.Generator().manual_seed(1)
    data = torch.rand((7, 60), generator=draw, dtype=torch.float64)
    data[:, :20] += torch.linspace(0, 3, 7, dtype=torch.float64).unsqueeze(1)
    present = torch.rand((7, 60), generator=draw) < 0.9
    data = torch.where(present, data, 0.0)
    limits = two_gaussians.Limits(1e-6, 0.01)
    start = two_gaussians.quantile_start(data, present, limits)
    for steps in (1, 8, 9, 200):
        found = climb_together(data, present, start, limits, steps, 1e-3)
        assert torch.allclose(found, climb(data, present, start, limits, steps, 1e-3), rtol=0, atol=1e-12)
