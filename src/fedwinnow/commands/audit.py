"""`fedwinnow audit`: which labels are worth a look, and what the models would have said."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from fedwinnow.auditing.audit_settings import AuditAsked
from fedwinnow.commands.common import Flags, escaped
from fedwinnow.errors import UsageError
from fedwinnow.experiment.settings import Experiment
from fedwinnow.flags import as_flags
from fedwinnow.setting import flag_of, setting, settings_in, taken

if TYPE_CHECKING:
    from rich.console import Console

    from fedwinnow.auditing.audit import AuditOutcome, AuditSettings
    from fedwinnow.auditing.update import Updated

# Settings of a run that an audit has too, and that are no flags.
HIDDEN = (
    "test",
    "validation",
    "start",
    "views",
    "clip",
    "drop_last",
    "batch_norm",
    "mixed_precision",
    "eval_every",
    "memorisation_every",
    "least_count",
    "privacy",
)


LISTED = 20  # reports that are named at the end; index.html has links to all


@as_flags(*HIDDEN)
@dataclass(frozen=True)
class Audit(AuditAsked, Flags):
    """Find wrong labels together: every site judges its own samples. Models and counts leave it, by default.

    What is claimed is the cautious end; where it cannot be known, the audit says so and gives the order alone.

    Each site gets a folder with audit.csv and report.html; the coordinator gets sites.csv with counts.
    """

    run_folder: Annotated[Path | None, tyro.conf.arg(name="run")] = setting(
        None, "A finished run whose model judges, instead of training."
    )
    update: Path | None = setting(
        None, "Bring an audit folder, or that of a site, up to date with what people said of labels drawn by lot."
    )
    look_cost: float = setting(
        0.2, "With --update: what a look costs, if a corrected label is worth 1.", above=0, below=1
    )
    no_self_test: bool = setting(False, "Withdrawn, without effect: there is no self-test any more.")

    def run(self) -> int:
        """Audit, with a progress bar on a terminal."""
        from fedwinnow.auditing.audit import perform
        from fedwinnow.commands.progress import Bar
        from fedwinnow.experiment.play import Execution

        if self.update is not None:
            return self.run_update(self.update)
        settings = self.settings()
        scene = None if self.scene is None else Path(self.scene).absolute().name
        by_run = None if self.run_folder is None else str(self.run_folder)
        folder = Path(self.out or default_folder(by_run or scene or settings.experiment.data))
        console = self.console()
        try:
            with Bar(console, self.backend, self.device) as bar:
                outcome = perform(settings, folder, taken(Execution, self), (bar,))
        except KeyboardInterrupt:
            console.print(f"\ninterrupted; the same command goes on where it was (folder {folder})", markup=False)
            return 130
        self.emit({"folder": str(folder), **outcome.facts, "counts": outcome.counts()})
        show_outcome(outcome, console)
        return 0

    def run_update(self, folder: Path) -> int:
        """Figures from looks."""
        from fedwinnow.auditing.update import update_audit

        allowed = ("update", "look_cost", "budget", "threshold", "json", "quiet")
        for name, field in settings_in(Audit).items():
            if name not in allowed and getattr(self, name) != field.default:
                raise UsageError(f"{flag_of(name)} was given with --update, which trains nothing; leave it out.")
        updated = update_audit(folder, threshold=self.threshold, look_cost=self.look_cost, budget=self.budget)
        self.emit({"folder": str(folder), "looks": updated.looks, "counts": updated.sites})
        show_update(updated, self.console())
        return 0

    def settings(self) -> AuditSettings:
        """What was asked for."""
        from fedwinnow.auditing.audit import choices_of, settings_asked, settings_of_run

        choices = choices_of(
            self.threshold, self.expected_false_alarms, False if self.no_self_test else None, self.budget
        )
        if self.run_folder is not None:
            if self.data is not None:
                raise UsageError("--data and --run exclude each other: a run knows its data.")
            self.refuse_beside_run()
            return settings_of_run(self.run_folder, self.judge, choices)
        if self.data is None and self.scene is None:
            raise UsageError("nothing to audit was given; allowed: --data, --scene, or --run with the folder of a run.")
        return settings_asked(self, self.data, choices)

    def refuse_beside_run(self) -> None:
        """A run is trained already, and knows who holds what."""
        for name in ("site", "group", *settings_in(Experiment)):
            if getattr(self, name) != settings_in(Audit)[name].default:
                raise UsageError(f"{flag_of(name)} was given with --run, whose model is trained already; leave it out.")


def default_folder(data: Any) -> Path:
    """audits/<data>."""
    name = str(getattr(data, "name", data))
    return Path("audits") / (re.sub(r"[\W_]+", "-", name).strip("-")[:60] or "audit")


def show_outcome(outcome: AuditOutcome, console: Console) -> None:
    """What is said of every site, and where to look."""
    from fedwinnow.terminal import Grid

    rows = []
    for line in outcome.counts()[:40]:
        called = str(line["to_review"]) if line["said"] == "calls" else ""
        rows.append((escaped(line["site"]), str(line["samples"]), line["said"], called, wrong_labels(line)))
    Grid("tntnt", ("site", "labels", "said", "called", "wrong labels"), rows).show(console)
    if len(outcome.counts()) > 40:
        console.print(f"... {len(outcome.counts()) - 40} more sites in sites.csv")
    if choice := outcome.facts.get("encoder_choice"):
        console.print(f"encoder: {choice['chosen'] or 'none'} ({choice['reason']})", markup=False)
    show_claims(outcome.facts, console)
    show_truth(outcome.facts, console)
    worst = sorted(outcome.counts(), key=lambda line: -(line["to_review"] or 0))
    if not any(line["folder"] for line in worst):
        console.print(f"counts are in [bold]{escaped(outcome.folder)}[/]; every site has its report in its own folder")
        return
    console.print(f"written to [bold]{escaped(outcome.folder)}[/]; open")
    for line in worst[:LISTED]:
        console.print(f"  {outcome.folder / line['folder'] / 'report.html'}", markup=False)
    if len(worst) > LISTED:
        left = f"  ... and the reports of {len(worst) - LISTED} more sites, with fewer labels to look at"
        console.print(f"{left}: {outcome.folder / 'index.html'} has links to all of them", markup=False)
    if any(line["to_review"] for line in worst):
        console.print(f"then: fedwinnow review {outcome.folder / worst[0]['folder']}", markup=False)
    else:
        console.print(f"then, to know more: fedwinnow review {outcome.folder} --anchor 30", markup=False)


def wrong_labels(line: dict[str, Any]) -> str:
    """How many labels of a site are wrong, as far as it can be known."""
    least, most = line["wrong_at_least"], line["wrong_at_most"]
    if line["said"] in ("calls", "range"):
        bound = f", at most about {most}" if most is not None and most > least else ""
        return f"at least about {max(least, 1)}{bound}"
    if line["said"] == "nothing found":
        return "none found"
    return "not known" if most is None else f"from none to about {most}"


def show_claims(facts: dict[str, Any], console: Console) -> None:
    """What is claimed about all sites together."""
    claims = facts["claims"]
    if claims["said"] != "calls":
        console.print(claims["reason"], markup=False)
        return
    if claims["precision_at_least"] is None:
        console.print(f"{claims['calls']} labels are called: too few for a percentage.", markup=False)
    else:
        console.print(
            f"{claims['calls']} labels are called; at least {100 * claims['precision_at_least']:.0f} % of them should "
            "be wrong, if the assumptions in the reports hold. A person has to look at them.",
            markup=False,
        )
    if claims["unknown_classes"]:
        names = ", ".join(claims["unknown_classes"][:8])
        console.print(f"Cannot be told, because the models do not know these classes: {names}.", markup=False)


def show_update(updated: Updated, console: Console) -> None:
    """What the looks say, for every site and together."""
    from fedwinnow.auditing.look_figures import percent, worth_in_words
    from fedwinnow.terminal import Grid

    rows = []
    for line in updated.sites[:40]:
        least, most = line["wrong_at_least"], line["wrong_at_most"]
        wrong = "too few looks here" if least is None else f"{least} to {most}"
        rows.append((escaped(line["site"]), str(line["samples"]), line["said"], str(line["to_review"]), wrong))
    Grid("tntnt", ("site", "labels", "said", "called", "wrong labels"), rows).show(console)
    if len(updated.sites) > 40:
        console.print(f"... {len(updated.sites) - 40} more sites in sites.csv")
    console.print(updated.looks["said"], markup=False)
    if updated.looks["warning"]:
        console.print(updated.looks["warning"], markup=False)
    if (calls := updated.looks["calls"]) is not None:
        console.print(
            f"{calls['labels']} labels are called; at least {percent(calls['low'])} of them should be wrong, "
            f"expected are {percent(calls['mean'])}.",
            markup=False,
        )
    elif updated.looks["called"]:
        console.print(f"{updated.looks['called']} labels are called: too few for a percentage.", markup=False)
    console.print(worth_in_words(updated.looks), markup=False)


def show_truth(facts: dict[str, Any], console: Console) -> None:
    """How good it was, where a trial has made the errors itself."""
    truth = facts["truth"]
    if truth is None:
        return
    calls = (
        f"{truth['found']} of its {truth['called']} calls are right ({100 * truth['found'] / truth['called']:.0f} %)"
        if truth["called"]
        else "no calls"
    )
    if truth["wrong"]:
        found = f"because labels were made wrong here: {truth['found']} of {truth['wrong']} wrong labels found"
    else:
        found = "because the true labels are known here: none is wrong"
    console.print(f"measured, {found}; {calls}.", markup=False)
