"""A federation ready to play, for tests that look inside one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import fedwinnow
from fedwinnow.experiment.play import Execution, Player
from fedwinnow.experiment.prepare import prepare
from fedwinnow.experiment.result import Result
from fedwinnow.experiment.run_folder import RunFolder
from fedwinnow.experiment.settings import Experiment
from fedwinnow.federation.rounds import Federation
from fedwinnow.mathematics.payload import Payload
from fedwinnow.testing import toy_data

TINY = {"clients": 4, "participation": 1.0, "rounds": 2, "epochs": 1, "batch_size": 8, "optimizer": "sgd:lr=0.1"}


def ready(folder: Path, execution: Execution | None = None, **settings: Any) -> Player:
    """A run before its first round; toy data unless told otherwise."""
    experiment = Experiment(**{"data": toy_data(), **TINY, **settings})
    return Player(prepare(experiment), RunFolder(folder), execution or Execution(), ())


def run(folder: Path, **settings: Any) -> Result:
    """A small run from beginning to end; toy data and three rounds unless told otherwise."""
    return fedwinnow.run(**{"out": folder, "data": toy_data(), **TINY, "rounds": 3, **settings})


def played(folder: Path, **settings: Any) -> Federation:
    """A federation after its last round."""
    federation = ready(folder, **settings).federation
    for number in range(1, federation.server.rounds + 1):
        federation.play_round(number)
    return federation


def weights(folder: Path, **settings: Any) -> Payload:
    """The global model after the last round."""
    return played(folder, **settings).server.weights


def equal(first: Payload, second: Payload) -> bool:
    """Whether two models are the same, bit for bit."""
    return first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)
