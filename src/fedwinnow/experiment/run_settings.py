"""The settings of a run as its users write them: what may change the result, and how the run is carried out."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from fedwinnow.experiment.play import Execution
    from fedwinnow.experiment.settings import Experiment


@dataclass
class RunSettings:
    """Everything that `fedwinnow run` and a config file may set."""

    data: str = "digits"
    """The data: a name with options (csv:path=a.csv,label=diagnosis), or a path to a folder of images or a file."""
    model: str | None = None
    """The model; none: it follows the data. ./my_model.py:build takes your own; lenet+mlp: in turn (see rhfl)."""
    clients: int = 20
    """How many clients; the partition `column` takes them from the data instead."""
    participation: float = 0.25
    """The share of clients that takes part in a round; at least one does."""
    rounds: int = 40
    """How many rounds."""
    epochs: int = 5
    """Local epochs per round."""
    batch_size: int = 32
    """Samples per step."""
    optimizer: str = "sgd:lr=0.03,momentum=0.5"
    """The local optimiser, made anew for every client and round."""
    partition: str = "iid"
    """Who holds which sample."""
    noise: str | None = None
    """Which labels are wrong; none: trusted data stays right, other data keeps the labels it was given."""
    scene: Path | None = None
    """The folder of a saved scene, instead of --data, --clients, --partition and --noise."""
    method: str = "fedavg"
    """The method, or a file with your own: ./my_method.py:key=value."""
    seed: int = 0
    """The same seed gives the same numbers, whatever the backend."""
    backend: str = "serial"
    """serial, or processes:workers=2."""
    device: str | None = None
    """cpu, cuda, cuda:1, mps; none: the best there is."""
    out: Path | None = None
    """The run folder; none: runs/<method>-<data>-<seed>."""
    config: Path | None = None
    """A TOML file with the same names, or one of `fedwinnow configs`; flags win over it, option by option."""
    resume: bool = False
    """Continue a run that was interrupted, or a finished one with more --rounds."""
    redo: Literal["all", "stale"] | None = None
    """Start anew and remove what the run has left in the folder; stale: only where its code or data has changed."""
    test: float = 0.2
    """The share split off as the test part, where the data has none of its own."""
    validation: float = 0.0
    """The share of every client's samples held out, labels as given, to choose a round by."""
    trusted: float = 0.0
    """Samples with right labels for the server: a share of the test part (0.2), or so many of its samples (200)."""
    public: str | None = None
    """Samples without labels for everybody: a share or a number, as above, or the name of other data (cifar100)."""
    eval_every: int = 1
    """Measure on the test part every so many rounds."""
    memorisation_every: int = 0
    """Measure every so many rounds which wrong labels the global and the local models know by heart; 0: at the end."""
    least_count: int = 0
    """What concerns fewer samples does not leave a site: a smaller site is absent, a smaller class as if missing."""
    views: Literal["none", "flip", "crop_flip", "strong"] = "none"
    """Random views of images in training; strong: crop and flip, three operations of RandAugment and a patch."""
    clip: float | None = None
    """Clip the norm of the gradient."""
    drop_last: bool = False
    """Leave out the last batch of an epoch when it is not full."""
    batch_norm: Literal["average", "local", "batch_statistics"] = "average"
    """Running statistics: averaged like weights, kept by each client, or not used at all (FedRN)."""
    mixed_precision: bool = False
    """Half precision where it is safe; on a CUDA device only."""
    checkpoint_every: int = 1
    """Save every so many rounds, more for big models; at most once a second, and always at the end."""
    on_client_error: Literal["stop", "drop"] = "stop"
    """When a client fails: stop with its name, or leave it out of the round."""
    quorum: float = 0.5
    """With drop: the share of the asked clients that must answer."""
    track: str | None = None
    """Trackers, separated by commas: tensorboard, wandb (offline unless WANDB_MODE says otherwise), mlflow."""

    def execution(self) -> Execution:
        """How the run is carried out, which changes nothing in its result."""
        from fedwinnow.experiment.play import Execution
        from fedwinnow.federation.rounds import Faults

        faults = Faults(self.on_client_error, self.quorum)
        return Execution(self.backend, self.device, self.resume, self.checkpoint_every, faults, redo=self.redo)

    def experiment(self) -> Experiment:
        """The settings that may change a result."""
        from fedwinnow.experiment.settings import Experiment

        self.refuse_beside_scene()
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(Experiment)}
        return Experiment(**values)

    def refuse_beside_scene(self) -> None:
        """Flags that a saved scene would silently overrule; over a config file it may, which says it of another run."""
        from fedwinnow.experiment.settings import refuse_beside_scene

        if self.scene is not None and self.config is None:
            refuse_beside_scene({field.name: (getattr(self, field.name), field.default) for field in fields(self)})


def default_folder(experiment: Experiment) -> Path:
    """runs/<method>-<data>-<seed>, with the folder of a saved scene in the place of the data."""
    scene, data = experiment.scene, getattr(experiment.data, "name", experiment.data)
    parts = (str(experiment.method), str(data) if scene is None else Path(scene).absolute().name)
    words = [re.sub(r"[^A-Za-z0-9]+", "-", part).strip("-") for part in parts]
    return Path("runs") / "-".join([*words, str(experiment.seed)])
