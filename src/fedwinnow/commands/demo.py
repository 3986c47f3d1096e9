"""`fedwinnow demo`: the main job on embedded data."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedwinnow.commands.audit import show_self_test, show_truth
from fedwinnow.commands.common import Flags

if TYPE_CHECKING:
    from rich.console import Console

METHODS = ("fedavg", "winnow")
AUDIT_ROUNDS = 20


@dataclass
class Demo(Flags):
    """Ten sites share handwritten digits; half of them mislabel. Train in spite of it, and audit the labels."""

    out: Path = Path("demo")
    """The folder for the scene, its pictures and the runs."""
    rounds: int = 30
    """How many rounds each method trains."""
    redo: Literal["all", "stale"] | None = None
    """Train anew; stale: only what is unfinished and was begun by another version."""

    def run(self) -> int:
        """Make the scene, show and draw it, train two methods on it, audit its labels, and say what was found."""
        from fedwinnow.figures.scene import draw_scene
        from fedwinnow.scene.files import describe_scene
        from fedwinnow.scene.scene import Scene
        from fedwinnow.scene.show import show_scene

        scene = Scene.make(
            "digits", clients=10, partition="dirichlet:alpha=1", noise="uniform:share=0.5,low=0.4,high=0.6", seed=0
        )
        scene.save(self.out)
        pictures = [str(path) for path in draw_scene(scene, self.out)]
        console = self.console()
        show_scene(scene, console)
        console.print()
        summaries = {method: self.train(method, console) for method in METHODS}
        found = self.audit(console)
        self.emit(
            {"folder": str(self.out), "pictures": pictures, "runs": summaries, "audit": found, **describe_scene(scene)}
        )
        show_runs(summaries, console)
        console.print(
            "\nLook at the pictures, at the report of each run, and at what each site is told about its labels:"
        )
        reports = [self.out / method / "report.html" for method in METHODS]
        worst = self.out / "audit" / scene.site_names[int(scene.realised.argmax())] / "report.html"
        for path in [*pictures, *reports, worst]:
            console.print(f"  {path}", markup=False)
        console.print()
        show_self_test(found["self_test"], console)
        show_truth(found["truth"], console)
        return 0

    def audit(self, console: Console) -> dict[str, Any]:
        """The labels of all sites, judged; a second call of the demo finds it done."""
        from fedwinnow.auditing.audit import DEFAULT_METHOD, AuditSettings, perform
        from fedwinnow.commands.progress import AuditBar
        from fedwinnow.experiment.play import Manner
        from fedwinnow.experiment.settings import Experiment

        folder = self.out / "audit"
        if (folder / "sites.csv").exists():
            done: dict[str, Any] = json.loads((folder / "audit.json").read_text(encoding="utf-8"))
            return done
        experiment = Experiment(
            scene=self.out,
            method=DEFAULT_METHOD,
            rounds=min(self.rounds, AUDIT_ROUNDS),
            participation=1.0,
            optimizer="sgd:lr=0.03,momentum=0.9",
        )
        with AuditBar(console) as bar:
            return perform(AuditSettings(experiment), folder, Manner(redo=self.redo), (bar,)).facts

    def train(self, method: str, console: Console) -> dict[str, Any]:
        """One run on the scene; a second call of the demo finds it finished."""
        from fedwinnow.commands.progress import Bar
        from fedwinnow.experiment.play import Manner, play
        from fedwinnow.experiment.settings import Experiment

        experiment = Experiment(
            scene=self.out,
            method=method,
            rounds=self.rounds,
            participation=0.5,
            epochs=3,
            optimizer="sgd:lr=0.03,momentum=0.9",
        )
        with Bar(console) as bar:
            return play(experiment, self.out / method, Manner(resume=True, redo=self.redo), (bar,))


def show_runs(summaries: dict[str, dict[str, Any]], console: Console) -> None:
    """What each method reached, side by side."""
    from rich.table import Table

    from fedwinnow.report.words import percent

    table = Table("", "accuracy, last 10", "wrong labels found", "of its calls right", box=None, header_style="dim")
    for method, summary in summaries.items():
        samples = summary["detection"]["samples"]
        table.add_row(
            f"[bold]{method}[/]",
            percent(summary["last10"]["accuracy"]),
            percent(samples["recall"]),
            percent(samples["precision"]),
        )
    console.print(table)
