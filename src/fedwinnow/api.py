"""The Python front door: the same names and defaults as the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedwinnow.errors import speaks_python
from fedwinnow.experiment.handed_over import HandedOver, taken_over
from fedwinnow.experiment.play import Watcher, play
from fedwinnow.experiment.result import Result
from fedwinnow.experiment.run_settings import RunSettings, in_groups
from fedwinnow.experiment.told_progress import progress_told
from fedwinnow.experiment.trackers.tracker import make_trackers
from fedwinnow.options import Part
from fedwinnow.setting import keywords_of, setting


@dataclass(frozen=True, kw_only=True)
class RunKeywords(HandedOver, RunSettings):
    """The settings of a run, and what only a program can hand over."""

    watchers: tuple[Watcher, ...] = setting(
        (), "Objects of your own that are told every round (`fedwinnow.experiment.play.Watcher`)."
    )


@keywords_of(RunKeywords, in_groups(RunKeywords))
def run(asked: RunKeywords, given: Mapping[str, Any]) -> Result:
    """Train a federation on a scene, measure it, and give back the result.

    The names and defaults are those of the command `fedwinnow run`:

        result = fedwinnow.run(method="feddiv", noise="uniform:low=0.4,high=0.6", rounds=5)
        print(result.summary["last10"]["accuracy"])

    A part (data, partition, noise, method, model, optimizer) is a text `name:key=value,key=value`, a dictionary with a
    `kind`, or an object such as `FedProx(mu=0.1)`; `fedwinnow methods`, `partitions`, `noises` and so on list them.
    `data` may also be a `Dataset` (see `fedwinnow.data.arrays.from_arrays`). What is called none below is None here.

    `redo=True` starts anew whatever is in the folder, `redo="stale"` only where code or data has changed since. Without
    it, a folder whose run was made of other code or data than there is now is refused (`StaleError`).

    Raises `UsageError` for a wrong request, `DataError` for wrong data and `RunError` where the run itself failed, all
    of `fedwinnow.errors`. The run folder is described in docs/run-folder.md.
    """
    with progress_told(asked.progress) as told:
        asked = taken_over(asked, given)
        experiment, execution = asked.experiment(), replace(asked.execution(), again=True)
        folder = asked.folder(experiment)
        play(experiment, folder, execution, (*told, *asked.watchers, *make_trackers(asked.track, folder)))
    own = asked.model if not isinstance(asked.model, str | dict | Part | None) else None
    method = experiment.method if isinstance(experiment.method, Part) else None
    return Result(folder, device=asked.device, model=own, method=method)


@speaks_python
def load(
    folder: str | Path,
    *,
    site: str | None = None,
    device: str | None = None,
    model: Any = None,
    method: Any = None,
    encoder: Any = None,
) -> Result:
    """The result of a run that was played before, with its trained model.

        result = fedwinnow.load("runs/winnow-digits-0")
        result.predict("new.csv")

    `site` chooses a model where every site has its own (methods `local` and `rhfl`). `model` is the module or function
    that a program gave to the run, and `method` a method that was defined there; a run folder has only their names.
    `encoder` names the files of the run's encoder where they lie elsewhere than then: "transformers:path=FOLDER".
    """
    return Result(folder, site=site, device=device, model=model, method=method, encoder=encoder)
