"""A whole audit: train, let every site judge its labels, write each site's folder and the coordinator's counts."""

from __future__ import annotations

import dataclasses
import json
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedwinnow.auditing.audit_folder import Previews, SiteLabels, SiteVerdict, write_site
from fedwinnow.auditing.audit_report import write_index, write_report
from fedwinnow.auditing.audit_settings import AuditAsked
from fedwinnow.auditing.judging_models import Judged, find_judge, judge_run, prepare_audit, train_and_judge
from fedwinnow.auditing.server_half import AuditWishes, Conclusion, ServerHalf, SitesHere
from fedwinnow.auditing.site_half import SiteHalf, Told
from fedwinnow.auditing.spreadsheet_files import table_text
from fedwinnow.auditing.statements import facts_of
from fedwinnow.data.dataset import Dataset
from fedwinnow.data.load import load, with_columns
from fedwinnow.data.source import Source
from fedwinnow.data.table_reading import TextTable
from fedwinnow.errors import FedwinnowWarning, UsageError
from fedwinnow.experiment.play import Execution, Watcher
from fedwinnow.experiment.prepare import Stage, make_scene, prepare
from fedwinnow.experiment.run_folder import RunFolder
from fedwinnow.experiment.settings import Experiment, experiment_of
from fedwinnow.files import FORMAT, folder_names, json_of, write_text
from fedwinnow.metrics.detection import relabelling, sample_detection
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


@dataclass(frozen=True)
class AuditSettings:
    """Every setting that changes what an audit finds."""

    experiment: Experiment
    judge: str = DEFAULT_JUDGE
    threshold: float = DEFAULT_THRESHOLD  # of p_wrong
    false_alarms: float | None = None  # it chooses the threshold: the share of calls that may be right labels
    budget: int | None = None  # how many labels to mark for a look
    run: Path | None = None  # the folder of a finished run that judges; `experiment` then has the settings of that run

    @property
    def wishes(self) -> AuditWishes:
        """What was asked for besides the models."""
        return AuditWishes(self.threshold, self.false_alarms, self.budget)

    def __post_init__(self) -> None:
        find_judge(self.judge)  # refuses an unknown judge before anything is written
        if not 0 < self.threshold <= 1:
            raise UsageError(f"--threshold {self.threshold} was given; allowed: above 0 and at most 1.")
        if self.false_alarms is not None and not 0 <= self.false_alarms < 1:
            raise UsageError(f"--expected-false-alarms {self.false_alarms} was given; allowed: from 0 to below 1.")
        if self.budget is not None and self.budget < 1:
            raise UsageError(f"--budget {self.budget} was given; allowed: 1 or more labels.")


@dataclass(frozen=True, eq=False)
class AuditOutcome:
    """What an audit found."""

    folder: Path
    lines: list[dict[str, Any]]  # of sites.csv
    facts: dict[str, Any]
    sites: list[SiteVerdict] = field(default_factory=list)  # of a simulation: what every site has found

    def counts(self) -> list[dict[str, Any]]:
        """The lines of sites.csv."""
        return self.lines


def perform(
    settings: AuditSettings,
    out: Path,
    execution: Execution,
    watchers: tuple[Watcher, ...] = (),
    table: TextTable | None = None,
    columns: tuple[str, ...] = (),
) -> AuditOutcome:
    """Audit, and write the audit folder; an interrupted audit continues where it stopped.

    A finished audit is refused, or with `execution.again` found again from its models, and its folder left as it is.
    """
    place = RunFolder(out)
    with place.locked():
        done = is_audited(out)
        if not (execution.again and execution.anew is None):
            refuse_audited(out)
        if done:  # before anything is trained: more rounds would change the models in the folder
            experiment, judge = settings.experiment, str(find_judge(settings.judge))
            refuse_other_audit(out, {"rounds": experiment.rounds, "seed": experiment.seed, "judge": judge})
        settings, choice = with_encoder_chosen(settings)
        judged = ask_judge(settings, out, execution, watchers)
        stage, (server, halves) = judged.stage, halves_of(judged)
        conclusion = server.conclude(settings.wishes)
        verdicts = [half.verdict(conclusion.told[site]) for site, half in halves.items()]
        names = folder_names([verdict.site for verdict in verdicts], RESERVED)
        facts = facts_in(settings, stage, conclusion) | encoder_facts(stage.experiment.encoder, choice)
        facts |= {"claims": conclusion.as_value()}
        if done:
            refuse_other_audit(out, facts)
        else:
            previews = Previews.of(stage.scene.dataset, table, columns)
            for verdict, name in zip(verdicts, names, strict=True):
                write_site(out / name, verdict, previews, facts)
                write_report(out / name)
        lines = [
            {**conclusion.line(site, verdict.site, len(verdict)), "folder": name}
            for site, verdict, name in zip(halves, verdicts, names, strict=True)
        ]
        truth = {"truth": against_truth(chosen_in(judged, halves, conclusion.told), verdicts)}
        outcome = AuditOutcome(out, lines, facts | truth, verdicts)
        if not done:
            write_coordinator(outcome)
    return outcome


def halves_of(judged: Judged) -> tuple[ServerHalf, dict[int, SiteHalf]]:
    """The coordinator and the sites of a simulation, all in this process."""
    stage, least = judged.stage, judged.stage.experiment.least_count
    halves = {site: SiteHalf(SiteLabels.of(stage, site), found, least) for site, found in judged.sites.items()}
    return ServerHalf(SitesHere(halves), list(halves), stage.scene.data.class_names, least), halves


def chosen_in(judged: Judged, halves: dict[int, SiteHalf], told: dict[int, Told]) -> Judged:
    """The same with the opinions that count, where a judge chooses."""
    return Judged(judged.stage, {site: half.chosen_opinions(told[site]) for site, half in halves.items()})


def is_audited(out: Path) -> bool:
    """Whether a folder has a finished audit."""
    return (out / "sites.csv").exists()


def refuse_audited(out: Path) -> None:
    """Refuse a folder that has an audit already."""
    if is_audited(out):
        raise UsageError(f"--out {out} already holds an audit, perhaps with decisions. Choose another folder.")


def refuse_other_audit(out: Path, facts: dict[str, Any]) -> None:
    """Refuse a folder whose audit was made with other settings; a budget only chooses what to look at."""
    stored, now = json_of(out / "audit.json"), json.loads(json.dumps(facts))
    for name in ("rounds", "seed", "method", "judge", "data", "threshold", "encoder"):
        if name in now and stored.get(name) != now[name]:
            raise UsageError(
                f"--out {out} holds an audit with another {name} ({stored.get(name)} there, {now[name]} now). "
                "Choose another folder, or use the same settings."
            )


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


def facts_in(settings: AuditSettings, stage: Stage, conclusion: Conclusion) -> dict[str, Any]:
    """How the labels were judged."""
    return facts_of(
        stage.scene.data,
        method=str(stage.method),
        judge=str(find_judge(settings.judge)),
        rounds=stage.experiment.rounds,
        seed=stage.experiment.seed,
        sites=len(conclusion.figures),
        threshold=conclusion.threshold,
        losses=conclusion.losses,
    )


def against_truth(judged: Judged, verdicts: list[SiteVerdict]) -> dict[str, Any] | None:
    """How good the audit was; None where the true labels are not known."""
    scene = judged.stage.scene
    if scene.wrong is None or scene.true is None:
        return None
    called = np.zeros(len(scene.given), bool)
    for site, verdict in zip(judged.sites, verdicts, strict=True):
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
            "--no-self-test has no effect: there is no self-test any more. The next version will not know it.",
            FedwinnowWarning,
            stacklevel=2,
        )
    chosen = {"threshold": threshold, "false_alarms": expected_false_alarms, "budget": budget}
    return {name: value for name, value in chosen.items() if value is not None}


def settings_for(
    data: Any,
    *,
    site: str | None = None,
    group: str | None = None,
    clients: int | None = None,
    partition: Any = None,
    scene: Any = None,
    judge: str | None = None,
    choices: dict[str, Any] | None = None,
    **others: Any,
) -> AuditSettings:
    """The settings of an audit that trains by itself; `choices` are those of the audit, `others` of its training."""
    if scene is not None:
        made_by_it = {"data": data, "clients": clients, "partition": partition, "noise": others.pop("noise", None)}
        for name, value in {**made_by_it, "site": site, "group": group}.items():
            if value is not None:
                raise UsageError(f"--{name} was given beside a saved scene, which has its own; leave it out.")
        return trained_by_itself({"scene": scene, **others}, judge, choices)
    if clients is not None and clients < 1:
        raise UsageError(f"--clients {clients} was given; allowed: 1 or more.")
    if clients is not None and site is not None:
        raise UsageError("--site and --clients exclude each other: the column says who holds what, or chance does.")
    dataset = data if isinstance(data, Dataset) else load_data(with_columns(data, site=site, group=group))
    if partition is None or clients is None:
        partition = partition_of(dataset, clients, partition)
    return trained_by_itself(
        {"data": dataset, "clients": clients or 1, "partition": partition, **others}, judge, choices
    )


def trained_by_itself(settings: dict[str, Any], judge: str | None, choices: dict[str, Any] | None) -> AuditSettings:
    """The same from the settings of its training."""
    experiment = experiment_of(settings)
    if experiment.privacy is not None:
        raise UsageError(
            f"--privacy {experiment.privacy} was given for an audit, whose counts and opinions the accounting does not "
            f"cover; allowed: with `fedwinnow run` and `fedwinnow serve`."
        )
    return AuditSettings(without_test_part(experiment), judge or DEFAULT_JUDGE, **(choices or {}))


def settings_asked(asked: AuditAsked, data: Any, choices: dict[str, Any]) -> AuditSettings:
    """The settings of an audit that trains by itself, of this data or of a scene."""
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
