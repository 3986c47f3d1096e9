"""`fedwinnow demo`: training and audit on data that comes with the package."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedwinnow.all_settings import PlaceSettings
from fedwinnow.commands.audit import show_claims, show_truth
from fedwinnow.commands.common import Flags
from fedwinnow.errors import MissingExtraError
from fedwinnow.setting import same

if TYPE_CHECKING:
    from rich.console import Console

    from fedwinnow.scene.scene import Scene

METHODS = ("fedavg", "winnow")
AUDIT_ROUNDS = 20
DURATION = "the demo takes about a minute on two cores"


@dataclass(frozen=True)
class Demo(Flags):
    """Ten sites hold handwritten digits, half of them with wrong labels. Train on them, and audit the labels."""

    out: Path = Path("demo")
    """The folder for the scene, its pictures and the runs."""
    rounds: int = 30
    """How many rounds each method trains."""
    redo: Literal["all", "stale"] | None = same(
        PlaceSettings, "redo", "Train anew; stale: only what is unfinished and was begun by another version."
    )

    def run(self) -> int:
        """Make, show and draw a scene, train two methods on it, audit its labels, and print the results."""
        from fedwinnow.scene.scene import Scene, describe_scene
        from fedwinnow.scene.scene_in_terminal import show_scene

        console = self.console()
        console.print(f"{DURATION}; the results stay in {self.out}", markup=False)
        scene = Scene.make(
            "digits", clients=10, partition="dirichlet:alpha=1", noise="uniform:share=0.5,low=0.4,high=0.6", seed=0
        )
        scene.save(self.out)
        show_scene(scene, console)
        pictures = self.draw(scene, console)
        console.print()
        summaries = {method: self.train(method, console) for method in METHODS}
        found = self.audit(console)
        self.emit(
            {"folder": str(self.out), "pictures": pictures, "runs": summaries, "audit": found, **describe_scene(scene)}
        )
        show_runs(summaries, console)
        console.print(
            f"\nLook at {'the pictures, at ' if pictures else ''}the report of each run, and at a site's report "
            "on its labels:"
        )
        reports = [self.out / method / "report.html" for method in METHODS]
        worst = self.out / "audit" / scene.site_names[int(scene.realised.argmax())] / "report.html"
        for path in [*pictures, *reports, worst]:
            console.print(f"  {path}", markup=False)
        console.print()
        show_claims(found, console)
        show_truth(found, console)
        return 0

    def draw(self, scene: Scene, console: Console) -> list[str]:
        """The pictures of the scene; none if the drawing library is missing."""
        from fedwinnow.study.figures.scene_pictures import draw_scene

        try:
            return [str(path) for path in draw_scene(scene, self.out)]
        except MissingExtraError as problem:
            console.print(f"no pictures this time: {problem}", markup=False)
            return []

    def audit(self, console: Console) -> dict[str, Any]:
        """Audit the labels of all sites, unless an earlier demo has done so."""
        from fedwinnow.auditing.audit import AuditSettings, perform
        from fedwinnow.auditing.audit_settings import DEFAULT_METHOD
        from fedwinnow.commands.progress import Bar
        from fedwinnow.experiment.play import Execution
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
        with Bar(console) as bar:
            return perform(AuditSettings(experiment), folder, Execution(redo=self.redo), (bar,)).facts

    def train(self, method: str, console: Console) -> dict[str, Any]:
        """Train one method on the scene, unless an earlier demo has done so."""
        from fedwinnow.commands.progress import Bar
        from fedwinnow.experiment.play import Execution, play
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
            return play(experiment, self.out / method, Execution(resume=True, redo=self.redo), (bar,))


def show_runs(summaries: dict[str, dict[str, Any]], console: Console) -> None:
    """Print the results of the methods side by side."""
    from fedwinnow.experiment.report.templates import percent
    from fedwinnow.terminal import Grid

    rows = []
    for method, summary in summaries.items():
        samples = summary["detection"]["samples"]
        figures = (summary["last10"]["accuracy"], samples["recall"], samples["precision"])
        rows.append((f"[bold]{method}[/]", *map(percent, figures)))
    Grid("tnnn", ("", "accuracy, last 10", "wrong labels found", "of its calls right"), rows).show(console)
