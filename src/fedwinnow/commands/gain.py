"""`fedwinnow gain`: what a federation gives to each of its sites."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from fedwinnow.all_settings import ExecutionSettings
from fedwinnow.commands.common import Flags, escaped
from fedwinnow.errors import UsageError
from fedwinnow.flags import as_flags
from fedwinnow.setting import taken

if TYPE_CHECKING:
    from rich.console import Console

    from fedwinnow.experiment.gain_table import Gain
    from fedwinnow.experiment.play import Watcher

SITES_SHOWN = 40
PARTS = {
    "alone": "every site alone",
    "together": "all sites together, with every label",
    "left_out": "all sites together, without the samples whose label this run called wrong",
}


@as_flags("resume")
@dataclass(frozen=True)
class GainOfRun(ExecutionSettings, Flags):
    """What does the federation give to each site? Compare a finished run with every site alone, and all together.

    It plays three further runs with the settings and the seed of the run, in RUN/gain, and measures each site on its
    own test part. The same command goes on where it was interrupted. The table is in RUN/gain.csv and in the report.
    """

    folder: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = None
    """The folder of a finished run."""

    def run(self) -> int:
        """Play, measure, and print a table."""
        from fedwinnow.experiment.play import Execution
        from fedwinnow.experiment.site_gain import measure_gain

        if self.folder is None:
            raise UsageError("no run folder was given; allowed: one, for example runs/fedavg-digits-0.")
        console = self.console()
        try:
            gain = measure_gain(self.folder, taken(Execution, self), self.watching)
        except KeyboardInterrupt:
            console.print(f"\ninterrupted; the same command goes on where it was (folder {self.folder})", markup=False)
            return 130
        self.emit({"folder": str(self.folder), **as_value(gain)})
        show_gain(gain, self.folder, console)
        return 0

    @contextmanager
    def watching(self, part: str) -> Iterator[tuple[Watcher, ...]]:
        """A progress bar for one of the runs."""
        from fedwinnow.commands.progress import Bar

        console = self.console()
        console.print(f"[bold]{PARTS[part]}[/]")
        with Bar(console, self.backend, self.device) as bar:
            yield (bar,)


def as_value(gain: Gain) -> dict[str, Any]:
    """The gain for machines."""
    from fedwinnow.experiment.gain_table import MEASURES, compared_in_words

    return {
        **dataclasses.asdict(gain),
        "mean": {measure: {name: gain.mean(name, measure) for name in gain.columns} for measure in MEASURES},
        "compared": {
            measure: {words: dataclasses.asdict(found) for words, found in compared_in_words(gain, measure)}
            for measure in MEASURES
        },
    }


def show_gain(gain: Gain, folder: Path, console: Console) -> None:
    """The accuracies of every site, and how many sites are better and worse off."""
    from fedwinnow.experiment.gain_table import COLUMNS, compared_in_words
    from fedwinnow.experiment.report.templates import percent
    from fedwinnow.terminal import Grid

    rows = [
        (escaped(site.site), str(site.samples), str(site.test_rows), *(percent(site.accuracy[n]) for n in COLUMNS))
        for site in gain.sites[:SITES_SHOWN]
    ]
    rows.append((f"mean of {len(gain.paired)} sites", "", "", *(percent(gain.mean(name)) for name in COLUMNS)))
    balanced_means = [percent(gain.mean(name, "balanced_accuracy")) for name in COLUMNS]
    rows.append(("mean of their balanced accuracies", "", "", *balanced_means))
    titles = ("site", "samples", "test rows", "alone", "together", "left out", "this run")
    Grid("tnnnnnn", titles, rows).show(console)
    if len(gain.sites) > SITES_SHOWN:
        console.print(f"... {len(gain.sites) - SITES_SHOWN} more sites in gain.csv")
    counts = []
    both = zip(compared_in_words(gain), compared_in_words(gain, "balanced_accuracy"), strict=True)
    for (words, found), (_, balanced) in both:
        figures = (found.better, found.worse, found.same, found.clearly_better, found.clearly_worse)
        counts.append((words, *map(str, figures), str(balanced.better), str(balanced.worse)))
    headings = (
        *("change", "sites better off", "worse off", "the same", "clearly better", "clearly worse"),
        *("balanced: better", "worse"),
    )
    console.print()
    Grid("tnnnnnnn", headings, counts).show(console)
    console.print(
        "accuracy on each site's own test part; one seed, so there is chance in every figure; clearly: by more than "
        "twice the error of the test rows; balanced: every class of a site counts the same"
    )
    console.print(f"written to [bold]{escaped(folder / 'gain.csv')}[/] and [bold]{escaped(folder / 'report.html')}[/]")
