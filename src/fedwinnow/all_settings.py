"""Every setting of a run, declared once; the classes say who needs which of them.

The order is that of config.toml and of the flags. The first two classes and `SiteSettings` together may change a
result (`fedwinnow.Experiment`); the others say how a run is carried out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedwinnow.errors import UsageError
from fedwinnow.setting import check_setting, check_settings, setting

BatchNorm = Literal["average", "local", "batch_statistics"]
Views = Literal["none", "flip", "crop_flip", "strong"]
Redo = Literal["all", "stale"] | None
AMOUNT = "at least 0 and below 1 (a share), or a whole number of samples"


def is_number(value: Any) -> bool:
    """Whether a setting that may also name something is a number."""
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def is_amount(value: float) -> bool:
    """A share, or so many."""
    return 0 <= value < 1 or (math.isfinite(value) and value == int(value) and value >= 1)


@dataclass(frozen=True, kw_only=True)
class SceneSettings:
    """Which samples there are, who holds them, and which labels are wrong."""

    data: Any = setting(
        "digits",
        "The data: a name with options (csv:path=a.csv,label=diagnosis), or a path to a folder of images or a file.",
    )
    clients: int = setting(20, "How many clients; the partition `column` takes them from the data instead.", at_least=1)
    partition: Any = setting("iid", "Who holds which sample.")
    noise: Any = setting(
        None,
        "Which labels are wrong; none: trusted data stays right, other data keeps the labels it was given.",
    )
    scene: Any = setting(None, "The folder of a saved scene, instead of data, clients, partition and noise.")
    test: float = setting(
        0.2,
        "The share split off as the test part, where the data has none of its own; it is never made noisy.",
        at_least=0,
        below=1,
        allowed="at least 0 and below 1, a share of the samples",
    )


@dataclass(frozen=True, kw_only=True)
class TaskSettings(SceneSettings):
    """What is set aside, and what is trained by whom."""

    validation: float = setting(
        0.0,
        "The share of every client's samples held out, labels as given, to choose a round by.",
        at_least=0,
        below=1,
    )
    trusted: float = setting(
        0.0,
        "Samples with right labels for the server: a share of the test part (0.2), or so many of its samples (200).",
        fits=is_amount,
        allowed=AMOUNT,
    )
    public: Any = setting(
        None,
        "Samples without labels for everybody: a share or a number, as above, or the name of other data (cifar100).",
        fits=lambda value: not is_number(value) or is_amount(float(value)),
        allowed=f"{AMOUNT}, or the name of data",
    )
    encoder: Any = setting(
        None,
        "A frozen encoder (see `fedwinnow encoders`) that turns images or texts into rows once; the model is the head.",
        since="0.2.0",
    )
    method: Any = setting("fedavg", "The method, or a file with your own: ./my_method.py:key=value.")
    model: Any = setting(
        None,
        "The model; none: it follows the data. ./my_model.py:build takes your own; lenet+mlp: in turn (see rhfl).",
    )
    start: str | Path | None = setting(
        None,
        "The folder of a finished run whose trained model this one begins with; other classes get a new last layer.",
        since="0.2.0",
    )
    participation: float = setting(
        0.25, "The share of clients that takes part in a round; at least one does.", above=0, at_most=1
    )


@dataclass(frozen=True, kw_only=True)
class Training:
    """How a client trains: what is the same for every method and every client."""

    rounds: int = setting(40, "How many rounds.", at_least=0)
    epochs: int = setting(5, "Local epochs per round.", at_least=0)
    batch_size: int = setting(32, "Samples per step.", at_least=1)
    optimizer: Any = setting("sgd:lr=0.03,momentum=0.5", "The local optimiser, made anew for every client and round.")
    views: Views = setting(
        "none",
        "Random views of images in training; strong: crop and flip, three operations of RandAugment and a patch.",
    )
    clip: float | None = setting(None, "Clip the norm of the gradient.", above=0)
    drop_last: bool = setting(False, "Leave out the last batch of an epoch when it is not full.")
    batch_norm: BatchNorm = setting(
        "average", "Running statistics: averaged like weights, kept by each client, or not used at all (FedRN)."
    )
    mixed_precision: bool = setting(False, "Half precision where it is safe; on a CUDA device only.")


@dataclass(frozen=True, kw_only=True)
class SiteSettings(Training):
    """What every site must know of a run: how it trains, when it is measured, and what may leave it."""

    eval_every: int = setting(1, "Measure on the test part every so many rounds.", at_least=1)
    memorisation_every: int = setting(
        0,
        "Measure every so many rounds which wrong labels the global and the local models know by heart; 0: at the end.",
        at_least=0,
    )
    least_count: int = setting(
        0,
        "What concerns fewer samples does not leave a site: a smaller site is absent, a smaller class as if missing.",
        at_least=0,
        allowed="0 (no least count) or more samples",
        since="0.2.0",
    )
    privacy: Any = setting(
        None,
        "Differential privacy: sample:epsilon=8,delta=1e-5,clip=1.0 protects samples, client:epsilon=8 whole sites.",
        since="0.2.0",
    )
    secure_sums: bool = setting(
        False,
        "The server learns only sums over sites of what they send, if the method needs no more (docs/secure-sums.md).",
        since="0.2.0",
    )
    secure_threshold: float = setting(
        0.66,
        "With secure sums: more than this share of the sites, and at least three, must stay to the end of a sum.",
        at_least=0.5,
        below=1,
        allowed="at least 0.5 and below 1, a share of the sites",
        since="0.2.0",
    )
    seed: int = setting(0, "The same seed gives the same scene and the same numbers, whatever the backend.")


# --- how a run is carried out, which changes nothing in its result -------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Faults:
    """What happens when a client fails."""

    on_client_error: Literal["stop", "drop"] = setting(
        "stop", "When a client fails: stop with its name, or leave it out of the round."
    )
    quorum: float = setting(
        0.5,
        "With drop: the share of the asked clients that must answer.",
        at_least=0,
        at_most=1,
        allowed="0 to 1, a share of the asked clients",
    )

    def __post_init__(self) -> None:
        check_setting(Faults, "quorum", self.quorum)  # first, because NaN is told what a share is
        check_settings(self)


@dataclass(frozen=True, kw_only=True)
class PlaceSettings:
    """Where the work is done, and whether it is done again."""

    backend: str = setting(
        "serial",
        "serial; processes:workers=2; auto: all cores where a run is long enough to gain by it. The results are equal.",
    )
    device: str | None = setting(None, "cpu, cuda, cuda:1, mps; none: the best there is.")
    redo: bool | Literal["all", "stale"] | None = setting(
        None,
        "Start anew and remove what the run has left in the folder; stale: only where its code or data has changed.",
    )

    @property
    def anew(self) -> Redo:
        """What shall be done again; in Python True means all."""
        if self.redo is None or self.redo is False:
            return None
        word = "all" if self.redo is True else self.redo
        if word not in ("all", "stale"):
            raise UsageError(f"redo={word!r} was given; allowed: True, False, 'all' or 'stale'.")
        return word


@dataclass(frozen=True, kw_only=True)
class ExecutionSettings(Faults, PlaceSettings):
    """How a run is carried out."""

    resume: bool = setting(False, "Continue a run that was interrupted, or a finished one with more rounds.")
    checkpoint_every: int = setting(
        1, "Save every so many rounds, more for big models; at most once a second, and always at the end.", at_least=1
    )

    def __post_init__(self) -> None:
        self.anew  # noqa: B018  # a wrong word is refused here
        super().__post_init__()
