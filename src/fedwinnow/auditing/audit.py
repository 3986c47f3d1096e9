"""An audit from beginning to end: train, judge on site, write what each site keeps and what the coordinator sees."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedwinnow.auditing.audit_folder import NOT_KNOWN, SiteVerdict, folder_names, table_text, verdicts_of, write_site
from fedwinnow.auditing.audit_report import write_report
from fedwinnow.auditing.judging_models import Judged, find_judge, judge_run, prepare_audit, train_and_judge
from fedwinnow.auditing.previews import Previews
from fedwinnow.data.table_reading import TextTable
from fedwinnow.errors import UsageError
from fedwinnow.experiment.play import Execution, Watcher
from fedwinnow.experiment.prepare import prepare
from fedwinnow.experiment.run_folder import RunFolder
from fedwinnow.experiment.settings import Experiment
from fedwinnow.files import FORMAT, write_text
from fedwinnow.metrics.detection import relabelling, sample_detection

DEFAULT_JUDGE = "mean"
# Chosen on planted scenes (results/audit.md): from 0.5 on there is up to three times as much to look at as is wrong,
# and from 0.9 on most errors with a system are missed.
DEFAULT_THRESHOLD = 0.7
SITE_COLUMNS = ("site", "folder", "samples", "judged", "to_review", "estimated_wrong", "estimated_rate", "reason")
P_WRONG = (
    "p_wrong is a score from 0 to 1 that puts the labels in order: how much of their belief the models put on other "
    "labels than the given one. It does not say how many labels are wrong."
)


# What programs look for and nobody knows; the reason is beside it.
UNKNOWN: dict[str, Any] = {
    "expected_false_alarms": None,
    "calibrated": False,
    "self_test": None,
    "not_known": NOT_KNOWN,
}


@dataclass(frozen=True)
class AuditSettings:
    """Everything that may change what an audit finds."""

    experiment: Experiment
    judge: str = DEFAULT_JUDGE
    threshold: float = DEFAULT_THRESHOLD  # of p_wrong
    run: Path | None = None  # a run that has been trained before, whose settings the experiment then has

    def __post_init__(self) -> None:
        find_judge(self.judge)  # an unknown one is an error now, before anything is written
        if not 0 < self.threshold <= 1:
            raise UsageError(f"--threshold {self.threshold} was given; allowed: above 0 and at most 1.")


@dataclass(frozen=True, eq=False)
class AuditOutcome:
    """What an audit found."""

    folder: Path
    sites: list[SiteVerdict]
    folders: list[str]
    facts: dict[str, Any]

    def counts(self) -> list[dict[str, Any]]:
        """The lines of sites.csv."""
        return [{**verdict.counts(), "folder": name} for verdict, name in zip(self.sites, self.folders, strict=True)]


def perform(
    settings: AuditSettings,
    out: Path,
    execution: Execution,
    watchers: tuple[Watcher, ...] = (),
    table: TextTable | None = None,
    columns: tuple[str, ...] = (),
) -> AuditOutcome:
    """Audit, and write the audit folder; an interrupted one goes on where it was."""
    place = RunFolder(out)
    with place.locked():
        if (out / "sites.csv").exists():
            raise UsageError(f"--out {out} already holds an audit, perhaps with decisions. Choose another folder.")
        judged = ask_judge(settings, out, execution, watchers)
        verdicts = verdicts_of(judged, settings.threshold)
        names = folder_names([verdict.site for verdict in verdicts])
        facts = facts_of(settings, judged)
        previews = Previews.of(judged.stage.scene.dataset, table, columns)
        for verdict, name in zip(verdicts, names, strict=True):
            write_site(out / name, verdict, previews, facts)
            write_report(out / name)
        outcome = AuditOutcome(out, verdicts, names, facts | {"truth": against_truth(judged, settings.threshold)})
        write_coordinator(outcome)
    return outcome


def ask_judge(settings: AuditSettings, out: Path, execution: Execution, watchers: tuple[Watcher, ...]) -> Judged:
    """How much the models hold against every label."""
    judge = find_judge(settings.judge)
    if settings.run is not None:
        return judge_run(prepare(settings.experiment), settings.run, judge, execution)
    return train_and_judge(prepare_audit(settings.experiment, judge), out / "training", judge, execution, watchers)


def facts_of(settings: AuditSettings, judged: Judged) -> dict[str, Any]:
    """What every site should know about how it was judged."""
    stage = judged.stage
    return {
        "data": {"name": stage.scene.data.name, "kind": stage.scene.data.kind, "source": stage.scene.data.source},
        "method": str(stage.method),
        "judge": str(find_judge(settings.judge)),
        "rounds": stage.experiment.rounds,
        "seed": stage.experiment.seed,
        "sites": int((stage.scene.holdings.sizes > 0).sum()),
        "threshold": settings.threshold,
        "p_wrong": P_WRONG,
        **UNKNOWN,
    }


def against_truth(judged: Judged, threshold: float) -> dict[str, Any] | None:
    """How good the audit was, measured; only a simulation, which knows the truth, can say."""
    scene = judged.stage.scene
    if scene.wrong is None or scene.true is None:
        return None
    called = judged.p_wrong >= threshold
    found = sample_detection(judged.score, scene.wrong)
    after = np.where(called, judged.other, scene.given)
    return {
        "wrong": int(scene.wrong.sum()),
        "called": int(called.sum()),
        "found": int((called & scene.wrong).sum()),
        "auroc": found["auroc"],
        "average_precision": found["average_precision"],
        "relabelled": relabelling(scene.given, after, scene.true),
    }


def write_coordinator(outcome: AuditOutcome) -> None:
    """sites.csv and audit.json; sites.csv is the last, because it says that the audit is whole."""
    write_text(
        outcome.folder / "audit.json", json.dumps({"format": FORMAT, **outcome.facts}, indent=1, allow_nan=False) + "\n"
    )
    rows = [["" if line[name] is None else line[name] for name in SITE_COLUMNS] for line in outcome.counts()]
    write_text(outcome.folder / "sites.csv", table_text(SITE_COLUMNS, rows))


def without_test_part(experiment: Experiment) -> Experiment:
    """Every label is judged, so none is set aside; data that has a test part of its own keeps it."""
    return dataclasses.replace(experiment, test=0.0)
