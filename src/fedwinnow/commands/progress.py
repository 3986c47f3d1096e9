"""A progress bar with accuracy, seconds per round and time left, and the summary at the end."""

from __future__ import annotations

import math
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedwinnow.commands.common import escaped
from fedwinnow.data.pace import WATCH, Progressed
from fedwinnow.experiment.play import Watcher
from fedwinnow.experiment.prepare import Stage
from fedwinnow.experiment.report.templates import number, percent
from fedwinnow.experiment.time_estimate import estimate, in_words
from fedwinnow.terminal import Grid

APART = 10.0  # seconds between two lines about reading and encoding, where there is no terminal


class Bar(Watcher):
    """Shows the rounds of a run, on a terminal only."""

    def __init__(self, console: Console, backend: str = "serial", device: str | None = None) -> None:
        self.console, self.backend, self.device = console, backend, device
        self.progress = Progress(
            TextColumn("{task.description}"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.fields[text]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=False),
            console=console,
            disable=not console.is_terminal or console.quiet,
            transient=True,
        )
        self.task = self.progress.add_task("round", total=None, text="")
        self.told = time.monotonic()

    def __enter__(self) -> Bar:
        self.progress.start()
        self.unwatched = WATCH.set(self.progressed)
        return self

    def progressed(self, now: Progressed) -> None:
        """Show how far reading or encoding is; without a terminal, a line now and then."""
        if self.progress.disable:
            if time.monotonic() - self.told > APART and now.done < now.total:
                self.told = time.monotonic()
                self.console.print(
                    f"{now.done} of {now.total} {now.things} are {now.doing}; {in_words(now.seconds)} left",
                    markup=False,
                )
            return
        self.progress.update(
            self.task,
            description=f"{now.things} {now.doing}",
            total=now.total,
            completed=now.done,
            text=f"{in_words(now.seconds)} left",
        )

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        WATCH.reset(self.unwatched)
        self.progress.stop()

    def started(self, stage: Stage, done: int, rounds: int) -> None:
        """Print what will be run, and how long it will take."""
        self.progress.reset(self.task, description="round", total=rounds, completed=done, text="")
        scene = stage.scene
        again = f", continuing after round {done}" if done else ""
        unknown = math.isnan(scene.realised_rate)
        wrong = "" if unknown else f", {percent(scene.realised_rate)} of the labels wrong"
        self.console.print(
            f"{stage.method.name} on {scene.data.name}: {scene.clients} clients, {rounds} rounds{again}{wrong}",
            markup=False,
        )
        for need, text in WARNINGS.items():
            if need in stage.method.needs:
                self.console.print(f"[yellow]{text}[/]")
        if not self.console.quiet and done < rounds and self.backend != "flower":  # other machines, other speeds
            seconds = estimate(stage, rounds - done, self.backend, self.device)
            self.console.print(f"[dim]this will take {in_words(seconds)}[/]")

    def round(self, row: dict[str, Any]) -> None:
        """Show one more round."""
        text = f"accuracy {percent(row.get('accuracy'))}, {row['seconds']:.2f} s a round"
        self.progress.update(self.task, completed=row["round"], text=text)
        warn_of_ranking(row.get("quality_correlation"), self.console)


WARNINGS = {
    "truth": "this method CHEATS: it trains only on samples whose labels are really right, as an upper reference",
    "pooled_data": "this method is NOT federated: all samples are in one place, as a reference",
}


def show_summary(summary: dict[str, Any], folder: Path, console: Console) -> None:
    """Print the numbers of a finished run: the last round, the last ten and the best."""
    columns = [summary["last"], summary["last10"], summary["best"]]
    names = ("accuracy", "balanced_accuracy", "macro_f1")
    rows = [(name.replace("_", " "), *(percent(column[name]) for column in columns)) for name in names]
    Grid("tnnn", ("", "last", "last 10", "best"), rows).show(console)
    samples = (summary.get("detection") or {}).get("samples")
    if samples is not None:
        console.print(
            f"wrong labels found: recall {percent(samples['recall'])}, precision {percent(samples['precision'])}, "
            f"AUROC {number(samples['auroc'])}"
        )
    quality = (summary.get("detection") or {}).get("quality")
    if quality is not None:
        console.print(f"estimated data quality of the clients: correlation with the truth {number(quality['pearson'])}")
        warn_of_ranking(quality["pearson"], console)
    memorised = (summary.get("memorisation") or {}).get("memorised")
    if memorised is not None:
        console.print(f"wrong labels that the model has memorised: {percent(memorised)}")
    if "privacy" in summary:
        told = summary["privacy"]
        console.print(
            f"privacy of {told['protects']}: epsilon {told['spent']:.3g} of {told['epsilon']:g} spent at delta "
            f"{told['delta']:g}; the noise is {told['noise']}",
            markup=False,
        )
    cost = summary["cost"]
    peak = cost["peak_memory_mb"]
    console.print(
        f"{cost['seconds']:.1f} s, {cost['bytes_up'] / 1e6:.1f} MB up, {cost['bytes_down'] / 1e6:.1f} MB down"
        + ("" if peak is None else f", peak memory {peak:.0f} MB")
    )
    console.print(f"written to [bold]{escaped(folder)}[/]; open [bold]{escaped(folder / 'report.html')}[/]")


def warn_of_ranking(correlation: float | None, console: Console) -> None:
    """Warn if a method takes its best clients for its worst."""
    if correlation is not None and correlation < 0:
        console.print(
            f"[yellow]the method ranks its clients BACKWARDS: its estimate of their data quality has a correlation of "
            f"{correlation:.2f} with the truth[/]"
        )
