"""The settings of a sweep that Python and the command line share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedwinnow.errors import UsageError
from fedwinnow.experiment.run_settings import RunSettings
from fedwinnow.setting import changed, setting


@dataclass(frozen=True, kw_only=True)
@changed(
    out=(Path("sweeps/sweep"), "The folder of the sweep; the run folders are below it."),
    resume=(True, "Always: what is finished is skipped, what is broken resumed."),
)
class SweepSettings(RunSettings):
    """The settings of a run, which hold for all runs of the sweep, and those of the sweep itself."""

    jobs: int | Literal["auto"] = setting(
        1,
        "How many runs at a time; auto: one for each GPU, else one for each core that this process may use, and one "
        "where all of them would take less than 20 seconds.",
    )
    engine: str = setting(
        "loky",
        "Where they run: loky (processes of this machine), dask, dask:address=tcp://host:8786, ray, ray:address=auto.",
    )

    def sweep_folder(self) -> Path:
        """The folder, which a sweep cannot do without."""
        if self.out is None:
            raise UsageError("--out none was given; allowed: the folder of the sweep.")
        return Path(self.out).absolute()
