"""An experiment: every setting that may change a result."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedwinnow.all_settings import SiteSettings, TaskSettings
from fedwinnow.errors import UsageError, speaks_python, unknown
from fedwinnow.mathematics.privacy import find_privacy
from fedwinnow.setting import check_settings, flag_of, settings_in, taken

BY_SCENE = ("data", "clients", "partition", "noise", "test")  # what a saved scene has decided


@dataclass(frozen=True, kw_only=True)
class Experiment(SiteSettings, TaskSettings):
    """One experiment. Two runs with equal experiments give equal results, bit for bit on a CPU."""

    @speaks_python
    def __post_init__(self) -> None:
        check_settings(self)
        if self.privacy is not None:
            find_privacy(self.privacy)  # so that a wrong one is an error here

    def at_sites(self) -> SiteSettings:
        """What every site must know; optimiser and privacy as texts, which can be sent."""
        privacy = None if self.privacy is None else str(find_privacy(self.privacy))
        return replace(taken(SiteSettings, self), optimizer=str(self.optimizer), privacy=privacy)


def experiment_of(settings: Mapping[str, Any]) -> Experiment:
    """The experiment that these keywords describe; a misspelt one is told apart from those that exist."""
    known = settings_in(Experiment)
    for name in settings:
        if name not in known:
            raise unknown("setting", name, known)
    if settings.get("scene") is not None:
        refuse_beside_scene(settings, Experiment)
    return Experiment(**settings)


def refuse_beside_scene(given: Mapping[str, Any], declared: type[Experiment]) -> None:
    """Beside a saved scene nothing may be asked for that it has decided, except what is asked for by default."""
    for name in BY_SCENE:
        usual = settings_in(declared)[name].default
        value = given.get(name, usual)
        if value is not usual and value != usual:
            raise UsageError(
                f"{flag_of(name)} {value} was given beside a saved scene, which has its own; allowed: either --scene, "
                f"or what makes a new one."
            )


def default_folder(experiment: Experiment) -> Path:
    """runs/<method>-<data>-<seed>, with the folder of a saved scene in the place of the data."""
    scene, data = experiment.scene, getattr(experiment.data, "name", experiment.data)
    if scene is not None:
        # A scene that a program made has no folder; its hash tells it from others of the same data.
        saved = isinstance(scene, str | Path)
        data = Path(scene).absolute().name if saved else f"{scene.data.name}-{scene.hash[:8]}"
    parts = (str(experiment.method), str(data))
    words = [re.sub(r"[^A-Za-z0-9]+", "-", part).strip("-") for part in parts]
    return Path("runs") / "-".join([*words, str(experiment.seed)])
