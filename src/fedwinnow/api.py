"""The Python front door: the same names and defaults as the command line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from fedwinnow.experiment.play import Manner, Watcher, play
from fedwinnow.experiment.result import Result
from fedwinnow.experiment.settings import Experiment
from fedwinnow.federation.rounds import Faults
from fedwinnow.trackers.tracker import make_trackers


def run(
    *,
    out: str | Path | None = None,
    backend: str = "serial",
    device: str | None = None,
    resume: bool = False,
    checkpoint_every: int = 1,
    on_client_error: Literal["stop", "drop"] = "stop",
    quorum: float = 0.5,
    watchers: tuple[Watcher, ...] = (),
    track: str | Sequence[str] | None = None,
    **settings: Any,
) -> Result:
    """Run one experiment and give back its result.

    `settings` are the fields of `fedwinnow.Experiment`, which are also the flags of `fedwinnow run`: data, clients,
    partition, noise, scene, method, model, participation, rounds, epochs, batch_size, optimizer, seed and the rest.
    `out` is the run folder; without one, a folder under `runs/` named after the method, the data and the seed.
    `track` names trackers (tensorboard, wandb, mlflow); `watchers` are objects of your own that are told every round.
    """
    experiment = Experiment(**settings)
    folder = Path(out) if out is not None else default_folder(experiment)
    manner = Manner(backend, device, resume, checkpoint_every, Faults(on_client_error, quorum))
    play(experiment, folder, manner, (*watchers, *make_trackers(track, folder)))
    return Result(folder)


def default_folder(experiment: Experiment) -> Path:
    """runs/<method>-<data>-<seed>."""
    parts = (str(experiment.method), str(getattr(experiment.data, "name", experiment.data)))
    words = [re.sub(r"[^A-Za-z0-9]+", "-", part).strip("-") for part in parts]
    return Path("runs") / "-".join([*words, str(experiment.seed)])
