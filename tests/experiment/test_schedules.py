"""A learning rate that changes from round to round: the same rounds whoever plays them, and however often they stop."""

from __future__ import annotations

import pytest
from safetensors.torch import load_file

import stages
from fedwinnow.errors import UsageError
from fedwinnow.testing import comparable
from remembering import At, interrupt

COSINE = {"optimizer": "adamw:lr=0.01,schedule=cosine,warm_up=1", "rounds": 4}


def weights(result) -> list[float]:
    """The global model of a run."""
    state = load_file(result.folder / "state.safetensors")
    return sorted(value for name, one in state.items() if name.startswith("model.") for value in one.flatten().tolist())


def test_an_interrupted_run_equals_an_uninterrupted_one(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        stages.run(tmp_path / "a", **COSINE, watchers=(At(2, interrupt),))
    again = stages.run(tmp_path / "a", **COSINE, resume=True)
    assert comparable(again.folder) == comparable(stages.run(tmp_path / "b", **COSINE).folder)


def test_a_round_is_trained_with_its_rate(tmp_path):
    """Two rounds whose rates are 0.1 and 0.01 are a round at 0.1, and one at 0.01 that starts from its model."""
    one = {"method": "fedavg", "batch_size": 500, "epochs": 1, "model": "linear", "clients": 1}
    stepped = stages.run(tmp_path / "a", rounds=2, **one | {"optimizer": "sgd:lr=0.1,schedule=step,every=1"})
    stages.run(tmp_path / "b", rounds=1, **one | {"optimizer": "sgd:lr=0.1"})
    then = stages.run(tmp_path / "c", rounds=1, start=tmp_path / "b", **one | {"optimizer": "sgd:lr=0.01"})
    assert weights(stepped) == weights(then)
    plain = stages.run(tmp_path / "d", rounds=2, **one | {"optimizer": "sgd:lr=0.1"})
    assert weights(stepped) != weights(plain)


def test_a_factor_of_one_changes_nothing(tmp_path):
    same = {"optimizer": "sgd:lr=0.1,schedule=step,every=1,factor=1"}
    assert weights(stages.run(tmp_path / "a", **same)) == weights(stages.run(tmp_path / "b", optimizer="sgd:lr=0.1"))


def test_the_server_follows_the_schedule_too(tmp_path):
    """FAIR's server trains on trusted samples when it weighs clients."""
    federation = stages.ready(tmp_path, trusted=0.3, rounds=2, optimizer="sgd:lr=0.4,schedule=step,every=1").federation
    rates = []
    for number in (1, 2):
        federation.server.begin(number)
        rates.append(federation.server.trusted.optimizer.lr)
    assert rates == pytest.approx([0.4, 0.04])


def test_a_cosine_is_not_stretched_afterwards(tmp_path):
    stages.run(tmp_path / "a", **COSINE)
    with pytest.raises(UsageError, match=r"begun with 4 rounds, and the schedule of adamw:lr=0\.01,.* depends on them"):
        stages.run(tmp_path / "a", **COSINE | {"rounds": 6}, resume=True)
    step = {"optimizer": "sgd:lr=0.1,schedule=step,every=2"}
    stages.run(tmp_path / "b", **step, rounds=2)
    longer = stages.run(tmp_path / "b", **step, rounds=3, resume=True)
    assert comparable(longer.folder) == comparable(stages.run(tmp_path / "c", **step, rounds=3).folder)
