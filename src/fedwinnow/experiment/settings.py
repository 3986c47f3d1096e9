"""An experiment: every setting that may change a result, with the names and defaults that users meet everywhere."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, get_type_hints

from fedwinnow.errors import UsageError, unknown
from fedwinnow.federation.least_count import check_least_count
from fedwinnow.federation.training_settings import BatchNorm, Training, Views
from fedwinnow.options import convert

BY_SCENE = ("data", "clients", "partition", "noise", "test")  # what a saved scene has decided
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


class Settings(TypedDict, total=False):
    """The keywords of `fedwinnow.run` and its kin, so that editors and type checkers know them."""

    data: Any
    clients: int
    partition: Any
    noise: Any
    scene: str | Path | None
    test: float
    validation: float
    trusted: float
    public: Any
    method: Any
    model: Any
    participation: float
    rounds: int
    epochs: int
    batch_size: int
    optimizer: Any
    views: Views
    clip: float | None
    drop_last: bool
    batch_norm: BatchNorm
    mixed_precision: bool
    eval_every: int
    memorisation_every: int
    least_count: int
    seed: int


@dataclass(frozen=True)
class Experiment:
    """One experiment. Two runs with equal experiments give equal results, bit for bit on a CPU."""

    data: Any = "digits"
    clients: int = 20
    partition: Any = "iid"
    noise: Any = None
    scene: str | Path | None = None  # a saved scene instead of data, clients, partition and noise
    test: float = 0.2
    validation: float = 0.0
    trusted: float = 0.0  # below 1 a share of the test part, else so many of its samples
    public: Any = None  # the same, or other data
    method: Any = "fedavg"
    model: Any = None
    participation: float = 0.25
    rounds: int = 40
    epochs: int = 5
    batch_size: int = 32
    optimizer: Any = "sgd:lr=0.03,momentum=0.5"
    views: Views = "none"
    clip: float | None = None
    drop_last: bool = False
    batch_norm: BatchNorm = "average"
    mixed_precision: bool = False
    eval_every: int = 1
    memorisation_every: int = 0
    least_count: int = 0  # what concerns fewer samples does not leave a site
    seed: int = 0

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(Experiment).items():
            if hint is not Any:  # a part, which says itself what it is
                convert(flag_of(name), getattr(self, name), hint)
        allowed = {
            "clients": (self.clients >= 1, "1 or more"),
            "participation": (0 < self.participation <= 1, "above 0 and at most 1"),
            "rounds": (self.rounds >= 0, "0 or more"),
            "epochs": (self.epochs >= 0, "0 or more"),
            "batch_size": (self.batch_size >= 1, "1 or more"),
            "validation": (0 <= self.validation < 1, "at least 0 and below 1"),
            "trusted": (is_amount(self.trusted), AMOUNT),
            "public": (not is_number(self.public) or is_amount(float(self.public)), f"{AMOUNT}, or the name of data"),
            "clip": (self.clip is None or self.clip > 0, "above 0, or none"),
            "eval_every": (self.eval_every >= 1, "1 or more"),
            "memorisation_every": (self.memorisation_every >= 0, "0 or more"),
        }
        check_least_count(self.least_count)
        for name, (good, words) in allowed.items():
            if not good:
                raise UsageError(f"{flag_of(name)} {getattr(self, name)} was given; allowed: {words}.")

    def training(self) -> Training:
        """The settings of local training."""
        names = {field.name for field in dataclasses.fields(Training)}
        return Training(**{name: getattr(self, name) for name in names - {"optimizer"}}, optimizer=str(self.optimizer))


def flag_of(name: str) -> str:
    """A setting as the command line writes it."""
    return f"--{name.replace('_', '-')}"


def experiment_of(settings: Settings) -> Experiment:
    """The experiment that these keywords describe; a misspelt one is told apart from those that exist."""
    usual = {field.name: field.default for field in dataclasses.fields(Experiment)}
    for name in settings:
        if name not in usual:
            raise unknown("setting", name, usual)
    if settings.get("scene") is not None:
        refuse_beside_scene({name: (value, usual[name]) for name, value in settings.items()})
    return Experiment(**settings)


def refuse_beside_scene(given: Mapping[str, tuple[Any, Any]]) -> None:
    """Beside a saved scene nothing may be asked for that it has decided; by name: what was given, what is usual."""
    for name in BY_SCENE:
        value, usual = given.get(name, (None, None))
        if value is not usual and value != usual:
            raise UsageError(
                f"{flag_of(name)} {value} was given beside a saved scene, which has its own; allowed: either --scene, "
                f"or what makes a new one."
            )
