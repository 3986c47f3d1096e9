"""`fedwinnow run`: one experiment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedwinnow.commands.common import Flags
from fedwinnow.experiment.run_settings import RunFromFile
from fedwinnow.flags import as_flags

if TYPE_CHECKING:
    from fedwinnow.experiment.play import Execution, Watcher
    from fedwinnow.experiment.settings import Experiment

    Play = Callable[[Experiment, Path, Execution, tuple[Watcher, ...]], dict[str, Any]]


@as_flags()
@dataclass(frozen=True)
class Run(RunFromFile, Flags):
    """Train a federation on a scene and measure it.

    Every part is written name:key=value,key=value; `fedwinnow methods`, `data`, `partitions`, `noises`, `models`,
    `losses`, `aggregators` and `optimizers` list them with all their options.
    """

    def run(self) -> int:
        """Play the experiment on this machine."""
        from fedwinnow.experiment.play import play

        return self.carried_out(play)

    def carried_out(self, play: Play) -> int:
        """The run from its flags to its summary, with a progress bar on a terminal; `play` is what happens between."""
        from fedwinnow.commands.progress import Bar, show_summary
        from fedwinnow.experiment.trackers.tracker import make_trackers

        experiment, execution, console = self.experiment(), self.execution(), self.console()
        folder = self.folder(experiment)
        try:
            trackers = make_trackers(self.track, folder)
            with Bar(console, execution.backend, execution.device) as bar:
                summary = play(experiment, folder, execution, (bar, *trackers))
        except KeyboardInterrupt:
            anew = ", without --redo" if self.redo else ""
            words = f"\ninterrupted; continue with the same command and --resume{anew} (folder {folder})"
            console.print(words, markup=False)
            return 130
        self.emit({"folder": str(folder), **summary})
        show_summary(summary, folder, console)
        return 0
