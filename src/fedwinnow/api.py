"""The Python front door: the same names and defaults as the command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Unpack

from fedwinnow.experiment.identity import redo_of
from fedwinnow.experiment.play import Execution, Watcher, play
from fedwinnow.experiment.result import Result
from fedwinnow.experiment.run_settings import default_folder
from fedwinnow.experiment.settings import Settings, experiment_of
from fedwinnow.experiment.trackers.tracker import make_trackers
from fedwinnow.federation.rounds import Faults


def run(
    *,
    out: str | Path | None = None,
    backend: str = "serial",
    device: str | None = None,
    resume: bool = False,
    redo: bool | Literal["all", "stale"] = False,
    checkpoint_every: int = 1,
    on_client_error: Literal["stop", "drop"] = "stop",
    quorum: float = 0.5,
    watchers: tuple[Watcher, ...] = (),
    track: str | Sequence[str] | None = None,
    **settings: Unpack[Settings],
) -> Result:
    """Train a federation on a scene, measure it, and give back the result.

    The names and defaults are those of the command `fedwinnow run`:

        result = fedwinnow.run(method="feddiv", noise="uniform:low=0.4,high=0.6", rounds=5)
        print(result.summary["last10"]["accuracy"])

    A part (data, partition, noise, method, model, optimizer) is a text `name:key=value,key=value`, a dictionary with a
    `kind`, or an object such as `FedProx(mu=0.1)`; `fedwinnow methods`, `partitions`, `noises` and so on list them.

    What may change the result (the fields of `fedwinnow.Experiment`):

        data="digits"         a spec, a path, or a `Dataset` (see `fedwinnow.data.arrays.from_arrays`)
        clients=20            how many sites; the partition `column` takes them from the data instead
        partition="iid"       who holds which sample
        noise=None            which labels are wrong; None: trusted data stays right, other data keeps its labels
        scene=None            the folder of a saved scene, instead of the four above
        method="fedavg"       the method, or a file with your own: "./my_method.py:key=value"
        model=None            None: it follows the data; "./my_model.py:build" takes your own
        participation=0.25    the share of sites that takes part in a round
        rounds=40             how many rounds
        epochs=5              local epochs per round
        batch_size=32         samples per step
        optimizer="sgd:lr=0.03,momentum=0.5"    the local optimiser
        test=0.2              the share split off as the test part, where the data has none of its own
        validation=0.0        the share of every site's samples held out, labels as given, to choose a round by
        trusted=0.0           samples with right labels for the server: a share of the test part, or so many
        public=None           samples without labels for everybody: a share, a number, or the name of other data
        views="none"          random views of images in training: "flip", "crop_flip", "strong"
        clip=None             clip the norm of the gradient
        drop_last=False       leave out the last batch of an epoch when it is not full
        batch_norm="average"  running statistics: averaged, "local", or "batch_statistics"
        mixed_precision=False half precision where it is safe; on a CUDA device only
        eval_every=1          measure on the test part every so many rounds
        memorisation_every=0  measure every so many rounds which wrong labels are known by heart; 0: at the end
        least_count=0         what concerns fewer samples does not leave a site (docs/exposure.md)
        seed=0                the same seed gives the same numbers, whatever the backend

    How it is carried out, which changes nothing in the result:

        out=None              the run folder; None: runs/<method>-<data>-<seed>
        backend="serial"      or "processes:workers=2"
        device=None           "cpu", "cuda", "cuda:1", "mps"; None: the best there is
        resume=False          continue a run that was interrupted, or a finished one with more rounds
        redo=False            start anew and remove what the run has left in the folder; "stale": only where its code or
                              data has changed since
        checkpoint_every=1    save every so many rounds
        on_client_error="stop"    or "drop": leave a failing site out of the round
        quorum=0.5            with "drop": the share of the asked sites that must answer
        watchers=()           objects of your own that are told every round (`fedwinnow.experiment.play.Watcher`)
        track=None            names of trackers: "tensorboard", "wandb", "mlflow"

    A folder whose run was made of other code or data than there is now is refused (`StaleError`).

    Raises `UsageError` for a wrong request, `DataError` for wrong data and `RunError` where the run itself failed, all
    of `fedwinnow.errors`. The run folder is described in docs/run-folder.md.
    """
    experiment = experiment_of(settings)
    folder = Path(out) if out is not None else default_folder(experiment)
    faults = Faults(on_client_error, quorum)
    execution = Execution(backend, device, resume, checkpoint_every, faults, redo=redo_of(redo))
    play(experiment, folder, execution, (*watchers, *make_trackers(track, folder)))
    return Result(folder)
