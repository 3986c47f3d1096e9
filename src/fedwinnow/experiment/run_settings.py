"""The settings of a run as its users write them: what may change the result, and how the run is carried out."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedwinnow.all_settings import ExecutionSettings
from fedwinnow.experiment.settings import Experiment, default_folder, refuse_beside_scene
from fedwinnow.setting import setting, settings_in, taken

if TYPE_CHECKING:
    from fedwinnow.experiment.play import Execution


@dataclass(frozen=True, kw_only=True)
class RunSettings(ExecutionSettings, Experiment):
    """Everything that a run may be asked for, in Python and on the command line."""

    out: str | Path | None = setting(None, "The run folder; none: runs/<method>-<data>-<seed>.")
    track: str | Sequence[str] | None = setting(
        None, "Trackers, separated by commas: tensorboard, wandb (offline unless WANDB_MODE says otherwise), mlflow."
    )

    def __post_init__(self) -> None:
        """Values are checked when they are used: a flag may still replace what a config file says."""

    def execution(self) -> Execution:
        """How the run is carried out, which changes nothing in its result."""
        from fedwinnow.experiment.play import Execution

        return taken(Execution, self)

    def experiment(self) -> Experiment:
        """The settings that may change a result."""
        self.refuse_beside_scene()
        return taken(Experiment, self)

    def refuse_beside_scene(self) -> None:
        """Refuse what a saved scene would silently overrule."""
        if self.scene is not None:
            refuse_beside_scene(vars(self), type(self))

    def folder(self, experiment: Experiment) -> Path:
        """The run folder."""
        return default_folder(experiment) if self.out is None else Path(self.out)


def in_groups(declared: type[RunSettings], hidden: Iterable[str] = ()) -> dict[str, list[str]]:
    """The settings of a function for its docstring: what it adds to those of a run, and these in two groups."""
    names = [name for name in inspect.signature(declared).parameters if name not in set(hidden)]
    results, of_run = settings_in(Experiment), settings_in(RunSettings)
    groups = {
        "What it takes besides the settings of a run:": [name for name in names if name not in of_run],
        "What may change the result (the fields of `fedwinnow.Experiment`):": [one for one in names if one in results],
        "How it is carried out, which changes nothing in the result:": [
            name for name in names if name in of_run and name not in results
        ],
    }
    return {heading: group for heading, group in groups.items() if group}


@dataclass(frozen=True, kw_only=True)
class RunFromFile(RunSettings):
    """The same, some of them from a config file."""

    config: Path | None = setting(
        None, "A TOML file with the same names, or one of `fedwinnow configs`; flags win over it, option by option."
    )

    def refuse_beside_scene(self) -> None:
        """A scene may overrule a config file, which says what it says of another run."""
        if self.config is None:
            super().refuse_beside_scene()
