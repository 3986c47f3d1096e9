"""`--backend auto`: several processes only where a run gains by them, and the same results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedwinnow.experiment import time_estimate
from fedwinnow.experiment.play import Execution
from fedwinnow.experiment.prepare import prepare
from fedwinnow.experiment.settings import Experiment
from stages import ready

SMALL: dict[str, Any] = {"data": "digits:train=60", "model": "linear", "clients": 3, "rounds": 1, "epochs": 1}


@pytest.mark.parametrize(
    ("seconds", "cores", "expected"), [(1.0, 8, "serial"), (21.0, 8, "processes"), (500.0, 1, "serial")]
)
def test_it_depends_on_the_time_and_the_cores(
    seconds: float, cores: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_estimate, "estimate", lambda stage, rounds, backend, device: seconds)
    monkeypatch.setattr(time_estimate, "default_workers", lambda host: cores)
    assert time_estimate.backend_for(prepare(Experiment(**SMALL)), "cpu") == expected


def test_a_small_run_stays_in_one_process_and_its_folder_says_so(tmp_path: Path) -> None:
    player = ready(tmp_path / "auto", Execution(backend="auto"), **SMALL)
    try:
        assert player.execution.backend == "serial"
        assert type(player.federation.backend).__name__ == "Serial"
    finally:
        player.federation.backend.close()
