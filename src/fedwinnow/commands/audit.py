"""`fedwinnow audit`: which labels are worth a look, and what the models would have said."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from fedwinnow.commands.common import Flags, escaped
from fedwinnow.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from fedwinnow.auditing.audit import AuditOutcome, AuditSettings

# The flags that are settings of training.
TRAINING = (
    "noise",
    "method",
    "model",
    "rounds",
    "epochs",
    "participation",
    "batch_size",
    "optimizer",
    "trusted",
    "public",
    "seed",
)
DECIDED_BY_A_RUN = (*TRAINING, "site", "clients", "partition")


@dataclass
class Audit(Flags):
    """Find labels worth a look together: every site judges its own samples. Models and counts leave it, by default.

    How many of them are really wrong is not known before a person has looked.

    Each site gets a folder with audit.csv and report.html; the coordinator gets sites.csv with counts.
    """

    data: str | None = None
    """The data: a name with options (csv:path=a.csv,label=diagnosis), or a path to a folder of images or a file."""
    site: str | None = None
    """The column of a table that says which site holds the row."""
    clients: int | None = None
    """Deal the samples out to so many sites instead, for a trial."""
    partition: str | None = None
    """How they are dealt out (see `fedwinnow partitions`); none: evenly, or as the site column says."""
    noise: str | None = None
    """For a trial: which labels are made wrong (see `fedwinnow noises`); the truth is then known."""
    run_folder: Annotated[Path | None, tyro.conf.arg(name="run")] = None
    """A finished run whose model judges, instead of training."""
    method: str = "winnow:warm_up=0.5"
    """The method that trains the judging models; none of them measured better on all kinds of errors than this one."""
    judge: str | None = None
    """How the models judge (see `fedwinnow judges`); none: the one that measured best."""
    threshold: float | None = None
    """From which p_wrong on a person should look at a label; none: 0.7."""
    expected_false_alarms: float | None = None
    """Withdrawn, and refused: how many labels are right after all is not known before a person has looked."""
    no_self_test: bool = False
    """Withdrawn, without effect: there is no self-test any more."""
    model: str | None = None
    """The model; none: it follows the data."""
    rounds: int = 20
    """How many rounds."""
    epochs: int = 5
    """Local epochs per round."""
    trusted: float = 0.0
    """For methods that need them: samples with right labels for the server, a share or a number of the test part."""
    public: str | None = None
    """For methods that need them: samples without labels for everybody, as above, or the name of other data."""
    participation: float = 1.0
    """The share of sites that takes part in a round."""
    batch_size: int = 32
    """Samples per step."""
    optimizer: str = "sgd:lr=0.03,momentum=0.9"
    """The local optimiser."""
    seed: int = 0
    """The same seed gives the same numbers, whatever the backend."""
    backend: str = "serial"
    """serial, or processes:workers=2."""
    device: str | None = None
    """cpu, cuda, cuda:1, mps; none: the best there is."""
    out: Path | None = None
    """The audit folder; none: audits/<data>."""
    redo: Literal["all", "stale"] | None = None
    """Start an unfinished audit anew; stale: only where its code or data has changed."""

    def run(self) -> int:
        """Audit, with a progress bar on a terminal."""
        from fedwinnow.auditing.audit import perform
        from fedwinnow.commands.progress import Bar
        from fedwinnow.experiment.play import Execution

        settings = self.settings()
        folder = self.out or default_folder(
            settings.experiment.data if self.run_folder is None else str(self.run_folder)
        )
        console = self.console()
        try:
            with Bar(console, self.backend, self.device) as bar:
                outcome = perform(settings, folder, Execution(self.backend, self.device, redo=self.redo), (bar,))
        except KeyboardInterrupt:
            console.print(f"\ninterrupted; the same command goes on where it was (folder {folder})", markup=False)
            return 130
        self.emit({"folder": str(folder), **outcome.facts, "counts": outcome.counts()})
        show_outcome(outcome, console)
        return 0

    def settings(self) -> AuditSettings:
        """What was asked for."""
        from fedwinnow.auditing.audit_request import choices_of, settings_for, settings_of_run

        choices = choices_of(self.threshold, self.expected_false_alarms, False if self.no_self_test else None)
        if self.run_folder is not None:
            if self.data is not None:
                raise UsageError("--data and --run exclude each other: a run knows its data.")
            self.refuse_beside_run()
            return settings_of_run(self.run_folder, self.judge, choices)
        if self.data is None:
            raise UsageError("nothing to audit was given; allowed: --data, or --run with the folder of a run.")
        values: dict[str, Any] = {name: getattr(self, name) for name in TRAINING}
        return settings_for(
            self.data,
            site=self.site,
            clients=self.clients,
            partition=self.partition,
            judge=self.judge,
            choices=choices,
            **values,
        )

    def refuse_beside_run(self) -> None:
        """A run is trained already, and knows who holds what."""
        for field in fields(self):
            if field.name in DECIDED_BY_A_RUN and getattr(self, field.name) != field.default:
                flag = f"--{field.name.replace('_', '-')}"
                raise UsageError(f"{flag} was given with --run, whose model is trained already; leave it out.")


def default_folder(data: Any) -> Path:
    """audits/<data>."""
    name = str(getattr(data, "name", data))
    return Path("audits") / (re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")[:60] or "audit")


def show_outcome(outcome: AuditOutcome, console: Console) -> None:
    """The counts of every site, what is not known, and where to look."""
    from fedwinnow.terminal import Grid

    rows = []
    for line in outcome.counts()[:40]:
        found = str(line["to_review"]) if line["judged"] else "too few samples to judge"
        rows.append((escaped(line["site"]), str(line["samples"]), found))
    Grid("tnn", ("site", "labels", "worth a look"), rows).show(console)
    if len(outcome.sites) > 40:
        console.print(f"... {len(outcome.sites) - 40} more sites in sites.csv")
    show_truth(outcome.facts, console)
    console.print(f"written to [bold]{escaped(outcome.folder)}[/]; open")
    worst = sorted(outcome.counts(), key=lambda line: -line["to_review"])
    for line in worst[:3]:
        console.print(f"  {outcome.folder / line['folder'] / 'report.html'}", markup=False)
    console.print(f"then: fedwinnow review {outcome.folder / worst[0]['folder']}", markup=False)


def show_truth(facts: dict[str, Any], console: Console) -> None:
    """How good it was, where a trial has made the errors itself; else that nobody knows."""
    truth = facts["truth"]
    if truth is None:
        console.print(facts["not_known"], markup=False)
        return
    calls = (
        f"{truth['found']} of its {truth['called']} calls are right ({100 * truth['found'] / truth['called']:.0f} %)"
        if truth["called"]
        else "no calls"
    )
    console.print(
        f"measured, because labels were made wrong here: {truth['found']} of {truth['wrong']} wrong labels found; "
        f"{calls}. On data of your own this is not known.",
        markup=False,
    )
