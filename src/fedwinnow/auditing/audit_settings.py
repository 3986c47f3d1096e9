"""The settings of an audit that Python and the command line share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedwinnow.all_settings import PlaceSettings
from fedwinnow.experiment.settings import Experiment
from fedwinnow.setting import changed, setting

# Models that have seen all labels know rare and hard samples; models that have left out what looks wrong do not believe
# errors with a system. Half of the rounds each, and they judge together.
DEFAULT_METHOD = "winnow:warm_up=0.5"


@dataclass(frozen=True, kw_only=True)
@changed(
    data=None,
    clients=(None, "Deal the samples out to so many sites instead, for a trial."),
    partition=(
        None,
        "How they are dealt out (see `fedwinnow partitions`); none: evenly, or as the site column says.",
    ),
    noise=(
        None,
        "For a trial: which labels are made wrong (see `fedwinnow noises`); the truth is then known.",
    ),
    encoder=(
        "auto",
        "A frozen encoder (see `fedwinnow encoders`); auto: the installed one, or none, that tells the given labels of "
        "a small sample best; none: no encoder.",
    ),
    method=(
        DEFAULT_METHOD,
        "The method that trains the judging models; none of them measured better on all kinds of errors than this one.",
    ),
    participation=1.0,
    rounds=20,
    optimizer="sgd:lr=0.03,momentum=0.9",
    redo=(None, "Start an unfinished audit anew; stale: only where its code or data has changed."),
)
class AuditAsked(PlaceSettings, Experiment):
    """What an audit may be asked for; the settings of an experiment are those of its training."""

    site: str | None = setting(None, "The column of a table that says which site holds the row.")
    group: str | None = setting(
        None,
        "The column of a table that says which rows belong together (a patient); they are judged by models that "
        "have seen none of them.",
        since="0.2.0",
    )
    judge: str | None = setting(
        None, "How the models judge (see `fedwinnow judges`); none: the one that measured best."
    )
    threshold: float | None = setting(
        None, "From which p_wrong on a label is called, so that a person looks at it; none: 0.5.", above=0, at_most=1
    )
    expected_false_alarms: float | None = setting(
        None,
        "Choose the threshold instead: the share of called labels that may be right after all, as p_wrong sees it.",
    )
    budget: int | None = setting(
        None, "Mark so many labels to look at, the first in order over all sites.", at_least=1, since="0.2.0"
    )
    out: str | Path | None = setting(None, "The audit folder; none: audits/<data>, or in Python a temporary one.")

    def __post_init__(self) -> None:
        """Values are checked when the audit is made of them."""
