"""Memory that runs out ends with advice, not with a traceback, wherever it runs out."""

from __future__ import annotations

import json

import pytest
import torch

from fedwinnow.errors import MemoryShortage, memory_shortage
from remembering import command

ON_THE_PROCESSOR = (
    "RuntimeError(\"[enforce fail at alloc_cpu.cpp:121] data. DefaultCPUAllocator: can't allocate memory: you tried to "
    'allocate 400000000000 bytes. Error code 12 (Cannot allocate memory)")'
)
ON_A_DEVICE = 'torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")'
MODEL = """
import torch


class Hungry(torch.nn.Module):
    def __init__(self, classes):
        super().__init__()
        if {when!r} == "made":
            raise {error}
        self.layer = torch.nn.Linear(64, classes)

    def forward(self, x):
        if {when!r} == "tried" or ({when!r} == "trained" and len(x) > 2):
            raise {error}
        return self.layer(x.flatten(1))


def build(classes):
    return Hungry(classes)
"""


@pytest.mark.parametrize("error", [ON_THE_PROCESSOR, ON_A_DEVICE, "MemoryError()"])
@pytest.mark.parametrize("when", ["made", "tried", "trained"])
@pytest.mark.parametrize("faults", ["stop", "drop --quorum 0"])
def test_a_run_stops_with_advice(tmp_path, capsys, error, when, faults):
    """Also where failing clients are dropped: the memory is the machine's, and the next client has no more of it."""
    (tmp_path / "model.py").write_text(MODEL.format(error=error, when=when))
    words = f"run --quiet --data digits:train=100 --clients 2 --rounds 2 --epochs 1 --model {tmp_path}/model.py:build"
    assert command(f"{words} --on-client-error {faults} --out {tmp_path}/run") == 4
    said = capsys.readouterr().err
    assert said.startswith("error: the memory of this machine is not enough")
    assert "--batch-size" in said
    assert "--model" in said
    assert "--jobs" in said
    assert "Traceback" not in said
    assert said.count("\n") == 1
    if when == "trained":
        assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "failed"


def test_a_sweep_tells_it_of_the_run_and_goes_on(tmp_path, capsys):
    (tmp_path / "model.py").write_text(MODEL.format(error=ON_THE_PROCESSOR, when="made"))
    words = f"sweep --quiet --data digits:train=100 --clients 2 --rounds 1 --model {tmp_path}/model.py:build --seeds 0"
    assert command(f"{words} --out {tmp_path}/sweep") == 4
    said = capsys.readouterr().err
    assert "the memory of this machine is not enough (can't allocate memory: you tried" in said
    assert not list(tmp_path.rglob("error.txt"))


def test_other_errors_are_not_taken_for_it():
    assert memory_shortage(RuntimeError("shapes differ")) is None
    assert memory_shortage(ValueError("out of memory")) is None
    assert isinstance(memory_shortage(torch.OutOfMemoryError("no room")), MemoryShortage)
