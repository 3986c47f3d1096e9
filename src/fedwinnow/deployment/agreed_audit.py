"""What coordinator and sites agree on before an audit: the judge, the column of groups, and which model judges whom."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedwinnow.auditing.judging_models import FOLDS, JudgingPart, find_judge, halves_of, parts_of
from fedwinnow.data.content_hash import contents_in, contents_of_arrays
from fedwinnow.data.dataset import Dataset
from fedwinnow.deployment.error_codes import for_others
from fedwinnow.deployment.foreign_text import one_line
from fedwinnow.deployment.remote_settings import check_part
from fedwinnow.errors import DataError, UsageError
from fedwinnow.experiment.prepare import Mask, Stage
from fedwinnow.federation.judge import Judge
from fedwinnow.files import Maybe, demand
from fedwinnow.randomness import Integers
from fedwinnow.scene.folds import site_folds

AUDIT = "audit"  # where it stands in what the coordinator sends
NAME = re.compile(r"[0-9a-f]{16}")
FORM = {"judge": str, "group": Maybe(str), "name": str, "parts": [str], "part": str, "judged": Maybe([int])}
PART = re.compile(r"fold-[1-3]|half-[12]|")


@dataclass(frozen=True)
class AgreedAudit:
    """What every message of an audit says of it."""

    judge: str
    group: str | None = None  # the column that says which rows belong together
    name: str = ""  # of the audit: where a site keeps its opinions until the coordinator has asked all questions
    parts: tuple[str, ...] = ()  # the federations that train
    part: str = ""  # the one that this message belongs to
    judged: tuple[int, ...] | None = None  # the sites that its models judge; None: every site, a fold each

    def as_value(self) -> dict[str, Any]:
        """As a message has it."""
        judged = None if self.judged is None else list(self.judged)
        return {**vars(self), "parts": list(self.parts), "judged": judged}

    @property
    def kind(self) -> Judge:
        """The judge itself."""
        return find_judge(self.judge)

    @property
    def fold(self) -> int | None:
        """The fold that this federation has not seen; None where it leaves out sites, or trains nothing."""
        return int(self.part[-1]) - 1 if self.part.startswith("fold-") else None


def audit_in(facts: dict[str, Any]) -> AgreedAudit | None:
    """The audit of a message, checked; None for a run that audits nothing."""
    told = facts.get(AUDIT)
    if told is None:
        return None
    try:
        found = AgreedAudit(**told)
    except TypeError:
        raise unreadable() from None
    try:
        demand("the audit", told, FORM)
    except DataError:
        raise unreadable() from None
    names = [*found.parts, found.part]
    if not all(PART.fullmatch(name) for name in names) or len(found.parts) > FOLDS or not NAME.fullmatch(found.name):
        raise unreadable()
    check_part("judges", found.judge, "--judge")
    return replace(found, parts=tuple(found.parts), judged=None if found.judged is None else tuple(found.judged))


def unreadable() -> DataError:
    """The error for an audit that this version does not know."""
    return for_others(DataError("what the coordinator says of its audit cannot be read."), "message")


def refuse_other_groups(dataset: Dataset, agreed: AgreedAudit) -> None:
    """Refuse to audit without the groups that were agreed: rows of one patient would judge each other."""
    mine = dataset.roles.get("group")
    if agreed.group is None or mine == agreed.group:
        return
    asked = one_line(agreed.group, 80)
    raise for_others(
        UsageError(
            f"the coordinator audits with --group {asked}: rows that share it are judged by models that have seen none "
            f"of them. The data here is read {f'with group={mine}' if mine else 'without a group'}; join with "
            f"--data ...,group={asked}."
        ),
        "samples",
    )


# --- at a site -------------------------------------------------------------------------------------------------------


def part_in(stage: Stage, agreed: AgreedAudit) -> JudgingPart:
    """The part of a simulation that a message belongs to."""
    parts = parts_of(stage, agreed.kind)
    found = next((one for one in parts if one.folder == agreed.part), None)
    if found is None:
        raise for_others(
            DataError("the coordinator trains a part of the audit that this scene does not have."), "message"
        )
    return found


def fold_of(dataset: Dataset, seed: int, site: int) -> Integers:
    """The fold of every sample of a real site; whole groups and copies are in one."""
    train = dataset.train
    return site_folds(train.groups, FOLDS, seed, site, contents_in(train.features))


def judged_here(dataset: Dataset, agreed: AgreedAudit, seed: int, site: int) -> Mask:
    """Which samples of a real site the models of this part judge; the others may train them."""
    if agreed.fold is not None:
        return np.asarray(fold_of(dataset, seed, site) == agreed.fold)
    return np.full(len(dataset.train), agreed.judged is None or site in agreed.judged)


def names_of_parts(judge: Judge) -> tuple[str, ...]:
    """The federations that an audit with this judge trains, as sites agree to them before the first."""
    if not judge.trains:
        return ("",)
    kind, many = ("fold", FOLDS) if judge.federations == 1 else ("half", judge.federations)
    return tuple(f"{kind}-{number + 1}" for number in range(many))


# --- at the coordinator ----------------------------------------------------------------------------------------------


def remote_parts(stage: Stage, judge: Judge) -> list[JudgingPart]:
    """The parts where the coordinator has no sample: a site knows its folds, and trains on the others."""
    if stage.simulated or not judge.trains:
        return parts_of(stage, judge)
    if judge.federations > 1:
        return halves_of(stage, judge)
    everybody, all_held = list(range(len(stage.site_names))), np.ones(len(stage.scene.given), bool)
    return [
        JudgingPart(
            f"fold-{number + 1}",
            replace(stage, left_out=contents_of_arrays("the fold that is judged", [np.array([number])])),
            everybody,
            all_held,
        )
        for number in range(FOLDS)
    ]
