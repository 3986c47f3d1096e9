"""A whole audit: train, let every site judge its labels, write each site's folder and the coordinator's counts."""

from __future__ import annotations

import dataclasses
import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedwinnow.auditing.audit_folder import (
    TOO_FEW,
    Previews,
    SiteVerdict,
    verdicts_of,
    write_site,
)
from fedwinnow.auditing.audit_report import write_index, write_report
from fedwinnow.auditing.audit_settings import AuditAsked
from fedwinnow.auditing.claims import Claims, CommonFinding, Opinions, claims_of
from fedwinnow.auditing.judging_models import Judged, find_judge, judge_run, prepare_audit, train_and_judge
from fedwinnow.auditing.spreadsheet_files import table_text
from fedwinnow.auditing.statements import ASSUMPTIONS, CALLS, CANNOT, FEWEST_CALLS, NOTHING, RANGE
from fedwinnow.data.dataset import Dataset
from fedwinnow.data.load import load, understood
from fedwinnow.data.source import Source
from fedwinnow.data.table_reading import TextTable
from fedwinnow.errors import FedwinnowWarning, UsageError
from fedwinnow.experiment.play import Execution, Watcher
from fedwinnow.experiment.prepare import make_scene, prepare
from fedwinnow.experiment.run_folder import RunFolder
from fedwinnow.experiment.settings import Experiment, experiment_of
from fedwinnow.files import FORMAT, folder_names, write_text
from fedwinnow.mathematics.strata import first_of_all, histogram
from fedwinnow.metrics.detection import relabelling, sample_detection
from fedwinnow.options import parse_spec
from fedwinnow.setting import settings_in

if TYPE_CHECKING:
    from fedwinnow.auditing.encoder_choice import Choice

DEFAULT_JUDGE = "mean"
DEFAULT_THRESHOLD = 0.5  # a label is called where it is at least as likely wrong as right
RESERVED = ("training", "audit.json", "sites.csv", "index.html")  # what else is in an audit folder
SITE_COLUMNS = (
    "site",
    "folder",
    "samples",
    "judged",
    "to_review",
    "said",
    "wrong_at_least",
    "wrong_at_most",
    "precision_at_least",
    "reason",
)
P_WRONG = (
    "p_wrong is the probability that a label is wrong, at least: the smallest that the counts of all sites allow, if "
    "the assumptions hold. Where it cannot be known it is empty."
)


@dataclass(frozen=True)
class AuditSettings:
    """Every setting that changes what an audit finds."""

    experiment: Experiment
    judge: str = DEFAULT_JUDGE
    threshold: float = DEFAULT_THRESHOLD  # of p_wrong
    false_alarms: float | None = None  # it chooses the threshold: the share of calls that may be right labels
    budget: int | None = None  # how many labels to mark for a look
    run: Path | None = None  # the folder of a finished run that judges; `experiment` then has the settings of that run

    def __post_init__(self) -> None:
        find_judge(self.judge)  # refuses an unknown judge before anything is written
        if not 0 < self.threshold <= 1:
            raise UsageError(f"--threshold {self.threshold} was given; allowed: above 0 and at most 1.")
        if self.false_alarms is not None and not 0 <= self.false_alarms < 1:
            raise UsageError(f"--expected-false-alarms {self.false_alarms} was given; allowed: from 0 to below 1.")


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
    """Audit, and write the audit folder; an interrupted audit continues where it stopped."""
    place = RunFolder(out)
    with place.locked():
        if (out / "sites.csv").exists():
            raise UsageError(f"--out {out} already holds an audit, perhaps with decisions. Choose another folder.")
        settings, choice = with_encoder_chosen(settings)
        judged = ask_judge(settings, out, execution, watchers)
        claims = claims_about(judged)
        settings = with_threshold_chosen(settings, claims)
        verdicts = verdicts_of(judged, claims, settings.threshold)
        if settings.budget is not None:
            verdicts = with_budget(verdicts, settings.budget)
        names = folder_names([verdict.site for verdict in verdicts], RESERVED)
        facts = facts_of(settings, judged) | encoder_facts(judged.stage.experiment.encoder, choice)
        facts |= {"claims": claims_as_value(claims, verdicts, settings.threshold)}
        previews = Previews.of(judged.stage.scene.dataset, table, columns)
        for verdict, name in zip(verdicts, names, strict=True):
            write_site(out / name, verdict, previews, facts)
            write_report(out / name)
        outcome = AuditOutcome(out, verdicts, names, facts | {"truth": against_truth(judged, verdicts)})
        write_coordinator(outcome)
    return outcome


def with_budget(verdicts: list[SiteVerdict], budget: int) -> list[SiteVerdict]:
    """The verdicts with so many labels marked: the first over all sites, found from histograms of the scores."""
    if budget < 1:
        raise UsageError(f"--budget {budget} was given; allowed: 1 or more labels.")
    judged = [verdict.decision != TOO_FEW for verdict in verdicts]
    counts = [histogram(verdict.score[here]) for verdict, here in zip(verdicts, judged, strict=True)]
    chosen = first_of_all(counts, budget)
    return [
        dataclasses.replace(verdict, look=here & (np.cumsum(here) <= many))
        for verdict, here, many in zip(verdicts, judged, chosen, strict=True)
    ]


def ask_judge(settings: AuditSettings, out: Path, execution: Execution, watchers: tuple[Watcher, ...]) -> Judged:
    """The judge's score of every label."""
    judge = find_judge(settings.judge)
    if settings.run is not None:
        return judge_run(prepare(settings.experiment), settings.run, judge, execution)
    return train_and_judge(prepare_audit(settings.experiment, judge), out / "training", judge, execution, watchers)


def with_encoder_chosen(settings: AuditSettings) -> tuple[AuditSettings, Choice | None]:
    """The settings with an encoder in the place of `auto`, and why it was chosen."""
    if settings.experiment.encoder != "auto":
        return settings, None
    from fedwinnow.auditing.encoder_choice import choose_for

    choice = choose_for(settings.experiment, make_scene(settings.experiment))
    experiment = dataclasses.replace(settings.experiment, encoder=choice.encoder)
    return dataclasses.replace(settings, experiment=experiment), choice


def encoder_facts(encoder: Any, choice: Choice | None) -> dict[str, Any]:
    """Which encoder the models saw the samples through; nothing if there was none and none was asked for."""
    if encoder is None and choice is None:
        return {}
    return {"encoder": None if encoder is None else str(encoder)} | (
        {} if choice is None else {"encoder_choice": choice.as_value()}
    )


def facts_of(settings: AuditSettings, judged: Judged) -> dict[str, Any]:
    """How the labels were judged; every site gets this."""
    stage = judged.stage
    return {
        "data": {"name": stage.scene.data.name, "kind": stage.scene.data.kind, "source": stage.scene.data.source},
        "method": str(stage.method),
        "judge": str(find_judge(settings.judge)),
        **judge_facts(judged),
        "rounds": stage.experiment.rounds,
        "seed": stage.experiment.seed,
        "sites": int((stage.scene.holdings.sizes > 0).sum()),
        "threshold": settings.threshold,
        "p_wrong": P_WRONG,
        "assumptions": list(ASSUMPTIONS),
    }


def judge_facts(judged: Judged) -> dict[str, Any]:
    """Which opinions a judge that chooses has chosen, and by which losses; nothing for other judges."""
    if not judged.losses:
        return {}
    return {
        "judge_choice": {"chosen": min(judged.losses, key=lambda name: judged.losses[name]), "losses": judged.losses}
    }


def claims_about(judged: Judged) -> Claims | None:
    """What may be claimed; None where the models have seen the labels, or gave no probabilities."""
    if judged.classes is None:
        return None
    scene = judged.stage.scene
    sites = [
        Opinions(scene.given[mine], judged.classes[mine])
        for mine in map(scene.holdings.of, np.flatnonzero(scene.holdings.sizes).tolist())
    ]
    return claims_of(sites, scene.classes, judged.stage.experiment.least_count)


def with_threshold_chosen(settings: AuditSettings, claims: Claims | None) -> AuditSettings:
    """The settings with the lowest threshold at which no more than the wanted share of calls should be right labels.

    It is found from counts of labels in hundredths of p_wrong, which sites could add up.
    """
    if settings.false_alarms is None:
        return settings
    found = [] if claims is None else [site[~np.isnan(site)] for site in claims.p_wrong]
    counts = np.bincount((np.concatenate([*found, [0.0]]) * 100).astype(np.int64), minlength=101)[:101]
    labels = np.cumsum(counts[:0:-1])[::-1]  # at 0.01 and above, at 0.02 and above, ...
    right = np.cumsum((counts[1:] * (1 - np.arange(1, 101) / 100))[::-1])[::-1]
    allowed = np.flatnonzero((right <= settings.false_alarms * labels) & (labels > 0))
    return dataclasses.replace(settings, threshold=float((allowed[0] + 1) / 100) if len(allowed) else 1.0)


def claims_as_value(claims: Claims | None, verdicts: list[SiteVerdict], threshold: float) -> dict[str, Any]:
    """What is claimed about all sites together, as values."""
    said = [verdict.statement for verdict in verdicts]
    together = next((word for word in (CALLS, RANGE, CANNOT, NOTHING) if any(one.said == word for one in said)), CANNOT)
    called = np.concatenate([verdict.p_wrong[verdict.flagged] for verdict in verdicts])
    if claims is None:
        return {"said": CANNOT, "reason": said[0].reason, "skill": None, "calls": 0}
    finding, names = claims.finding, verdicts[0].class_names
    return {
        "said": together,
        "reason": next(one.reason for one in said if one.said == together) if said else "",
        "skill": round(finding.skill, 4),
        "skilled": finding.skilled,
        "recognised": {
            name: None if np.isnan(share) else round(float(share), 4)
            for name, share in zip(names, finding.classes.recognised, strict=True)
        },
        "unknown_classes": [name for name, known in zip(names, claims.known, strict=True) if not known],
        "rates": rates_as_value(finding) if finding.skilled else None,
        "calls": len(called),
        "precision_at_least": float(called.mean()) if len(called) >= FEWEST_CALLS else None,
        "recall": claims.decoys.recall(threshold) if len(called) >= FEWEST_CALLS else None,
    }


def rates_as_value(finding: CommonFinding) -> dict[str, float]:
    """The rates of wrong labels common to all sites that the counts allow, and the one that is claimed."""
    allowed = finding.range
    return {
        "low": allowed.low.common,
        "mid": allowed.mid.common,
        "high": allowed.high.common,
        "claimed": finding.explanation.common,
    }


def against_truth(judged: Judged, verdicts: list[SiteVerdict]) -> dict[str, Any] | None:
    """How good the audit was; None where the true labels are not known."""
    scene = judged.stage.scene
    if scene.wrong is None or scene.true is None:
        return None
    called = np.zeros(len(scene.given), bool)
    for site, verdict in zip(np.flatnonzero(scene.holdings.sizes).tolist(), verdicts, strict=True):
        mine = scene.holdings.of(site)
        called[mine] = np.isin(scene.holdings.rows[mine], verdict.rows[verdict.flagged])
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
    """Write audit.json and then sites.csv, which is the sign that the audit is complete."""
    write_text(
        outcome.folder / "audit.json", json.dumps({"format": FORMAT, **outcome.facts}, indent=1, allow_nan=False) + "\n"
    )
    write_index(outcome.folder, outcome.facts["data"]["name"], outcome.counts())
    rows = [["" if line[name] is None else line[name] for name in SITE_COLUMNS] for line in outcome.counts()]
    write_text(outcome.folder / "sites.csv", table_text(SITE_COLUMNS, rows))


def without_test_part(experiment: Experiment) -> Experiment:
    """The same settings without a test part, so that every label is judged; data with a test part keeps it."""
    return dataclasses.replace(experiment, test=0.0)


RUN_JUDGE = "final:prior=false"  # a run that was not made for an audit has kept nothing but its model


def choices_of(
    threshold: float | None, expected_false_alarms: float | None, self_test: bool | None, budget: int | None = None
) -> dict[str, Any]:
    """What a user chose of the audit itself."""
    if threshold is not None and expected_false_alarms is not None:
        raise UsageError("--threshold and --expected-false-alarms exclude each other: the second chooses the first.")
    if self_test is not None:
        warnings.warn(
            "--no-self-test (in Python self_test=) has no effect: there is no self-test any more. The next version "
            "will not know it.",
            FedwinnowWarning,
            stacklevel=2,
        )
    chosen = {"threshold": threshold, "false_alarms": expected_false_alarms, "budget": budget}
    return {name: value for name, value in chosen.items() if value is not None}


def with_columns(data: Any, **columns: str | None) -> Any:
    """The data with the columns that name the site and the group of every sample."""
    for role, column in columns.items():
        data = data if column is None else with_column(data, role, column)
    return data


def with_column(data: Any, role: str, column: str) -> Any:
    """The data with the column of one role."""
    found = understood(data)
    if isinstance(found, str):
        name, values = parse_spec(found)
        found = {"kind": name, **values}
    if not isinstance(found, dict):
        raise UsageError(f"--{role} names a column of a table; write it into the data itself here.")
    if found.get(role, column) != column:
        raise UsageError(f"--{role} {column} was given, but the data says {role}={found[role]}. Give one of them.")
    return {**found, role: column}


def settings_for(
    data: Any,
    *,
    site: str | None = None,
    group: str | None = None,
    clients: int | None = None,
    partition: Any = None,
    judge: str | None = None,
    choices: dict[str, Any] | None = None,
    **others: Any,
) -> AuditSettings:
    """The settings of an audit that trains by itself; `choices` are those of the audit, `others` of its training."""
    if clients is not None and clients < 1:
        raise UsageError(f"--clients {clients} was given; allowed: 1 or more.")
    if clients is not None and site is not None:
        raise UsageError("--site and --clients exclude each other: the column says who holds what, or chance does.")
    dataset = data if isinstance(data, Dataset) else load_data(with_columns(data, site=site, group=group))
    if partition is None or clients is None:
        partition = partition_of(dataset, clients, partition)
    settings = {"data": dataset, "clients": clients or 1, "partition": partition, **others}
    experiment = experiment_of(settings)
    return AuditSettings(without_test_part(experiment), judge or DEFAULT_JUDGE, **(choices or {}))


def settings_asked(asked: AuditAsked, data: Any, choices: dict[str, Any]) -> AuditSettings:
    """The settings of an audit that trains by itself, of this data."""
    who = ("data", "clients", "partition")
    training = {name: getattr(asked, name) for name in settings_in(Experiment) if name not in who}
    if training["encoder"] == "none":  # a word that the command line needs, because its default is another
        training["encoder"] = None
    return settings_for(
        data,
        site=asked.site,
        group=asked.group,
        clients=asked.clients,
        partition=asked.partition,
        judge=asked.judge,
        choices=choices,
        **training,
    )


def load_data(data: str | Path | dict[str, Any] | Source) -> Dataset:
    """Load once; what the audit writes about its data is then about exactly this."""
    return load(data)


def partition_of(dataset: Dataset, clients: int | None, asked: Any) -> str:
    """Who holds what: the data says it, or it is dealt out to so many sites for a trial."""
    if clients is not None:
        return "iid"
    if str(asked) not in ("None", "column"):
        raise UsageError(f"--partition {asked} deals the samples out; add --clients N to say to how many sites.")
    if dataset.train.sites is None:
        raise UsageError(
            f"nobody says which site holds which sample of {dataset.name}. Give --site COLUMN for a table, or "
            "--clients N to deal the samples out to N sites for a trial."
        )
    return "column"


def settings_of_run(folder: Path, judge: str | None, choices: dict[str, Any]) -> AuditSettings:
    """The settings of an audit by the model of a run."""
    return AuditSettings(RunFolder.existing(folder).experiment(), judge or RUN_JUDGE, run=folder, **choices)
