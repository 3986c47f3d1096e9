"""A site's part of an audit: it keeps what the models think of its labels, answers with counts, writes its folder.

Opinions are files, so that a site that was started anew answers as before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedwinnow.auditing.audit_folder import CANNOT_TELL, Previews, SiteLabels, write_site
from fedwinnow.auditing.audit_report import write_report
from fedwinnow.auditing.judges import CANDIDATES
from fedwinnow.auditing.judging_models import SiteOpinions, find_judge
from fedwinnow.auditing.site_half import SiteHalf, Told
from fedwinnow.auditing.statements import SEEN, facts_of
from fedwinnow.auditing.wire_values import SHAPES, sums_as_payload, told_from_values
from fedwinnow.data.dataset import Dataset
from fedwinnow.deployment.agreed_audit import AgreedAudit
from fedwinnow.deployment.error_codes import for_others
from fedwinnow.deployment.foreign_text import one_line
from fedwinnow.errors import DataError, RunError
from fedwinnow.experiment.prepare import Mask
from fedwinnow.federation.host import Host
from fedwinnow.federation.memory import seal, unseal
from fedwinnow.files import Maybe, demand, replacing
from fedwinnow.mathematics.payload import Payload
from fedwinnow.mathematics.strata import BINS

RUN_JUDGE = "final:prior=false"  # after a run that was no audit: its last model, which has seen the labels
NO_P_WRONG = "p_wrong is empty: the models have seen the labels. The score puts the labels in order, nothing more."
EARLIER = "earlier"  # folders of audits before this one, with what people decided
OF_PEOPLE = ("decisions.csv", "looks.csv")
FILES = ("audit.csv", "audit-before-looks.csv", "site.json", "report.html", "previews", *OF_PEOPLE)
CLAIMS = {
    "said": str,
    "reason": str,
    "skill": Maybe(float),
    "skilled?": bool,
    "recognised?": {"*": Maybe(float)},
    "unknown_classes?": [str],
    "rates?": Maybe({"*": float}),
    "calls": int,
    "precision_at_least?": Maybe(float),
    "recall?": Maybe(float),
}
CONCLUSION = {
    "threshold": float,
    "losses": {"*": float},
    "sites": int,
    "claims": CLAIMS,
    "strata": {"last": [int], "sizes": [int]},
}
LONGEST = 1000  # letters of a reason


@dataclass(frozen=True)
class AuditedHere:
    """One client of this machine: its samples, and where its audit is kept and written."""

    dataset: Dataset
    host: Host  # of any part of the audit: its samples are the same
    client: int
    name: str
    class_names: tuple[str, ...]
    folder: Path  # for the people at the site
    kept: Path  # for opinions
    least: int
    encoded: bool

    @property
    def labels(self) -> SiteLabels:
        """The labels as the audit sees them."""
        return SiteLabels.held(
            self.dataset, self.host.judged, self.client, self.name, self.class_names, encoded=self.encoded
        )

    def file(self, part: str) -> Path:
        """Where the opinions of one federation are."""
        return self.kept / f"{self.client:06d}-{part or 'all'}.safetensors"

    def keep(self, part: str, mask: Mask, reply: Payload) -> None:
        """Store what the models of one federation think of the samples; `mask` are those that they judge."""
        content = seal({**{f"reply.{key}": value for key, value in reply.items()}, "mask": torch.from_numpy(mask)})
        try:
            with replacing(self.file(part)) as stream:
                for piece in content:
                    stream.write(piece)
        except OSError as problem:
            raise RunError(f"{self.file(part)}: cannot be written ({problem.strerror}).") from None

    def half(self, parts: tuple[str, ...]) -> SiteHalf:
        """The half of the audit that is here, from the opinions of all federations."""
        replies = []
        for part in parts:
            if not self.file(part).exists():
                raise DataError(
                    f"{self.file(part)} is missing: this site was not asked what the models of {part or 'the audit'} "
                    "think of its labels. Let the coordinator start again with --resume."
                )
            stored = unseal(self.file(part), "Let the coordinator start again with --resume")[0]
            mask = stored.pop("mask").numpy()
            replies.append((mask, {key.removeprefix("reply."): value for key, value in stored.items()}))
        labels = self.labels
        opinions = SiteOpinions.collected(replies, len(labels.given), len(self.class_names), held_out=True)
        return SiteHalf(labels, opinions, self.least)

    def answer(self, half: SiteHalf, ask: str, facts: dict[str, Any], payload: Payload) -> Payload:
        """The counts that answer a question."""
        if ask not in SHAPES:
            raise for_others(
                DataError(f"the coordinator asked '{one_line(ask, 40)}', no question of an audit."), "question"
            )
        told = self.told(facts, payload)
        needed = {"errors": told.finding, "decoys": told.finding, "sureness": told.known}
        if needed.get(ask, told) is None or (ask in AFTER and told.common is None):
            raise for_others(DataError(f"the coordinator asked '{ask}' before what it rests on."), "message")
        return sums_as_payload(half.answer(ask, told))

    def told(self, facts: dict[str, Any], payload: Payload) -> Told:
        """What the coordinator has told."""
        try:
            return told_from_values(facts.get("told"), payload, len(self.class_names))
        except DataError as problem:
            raise for_others(problem, "message") from None

    def write(self, half: SiteHalf, told: Told, agreed: AgreedAudit, run: dict[str, Any], conclusion: Any) -> None:
        """Write audit.csv, site.json, the previews and report.html."""
        conclusion = checked(conclusion, self.class_names)
        experiment = run["experiment"]
        facts = facts_of(
            self.dataset,
            method=str(self.host.method),
            judge=str(agreed.kind),
            rounds=experiment["rounds"],
            seed=experiment["seed"],
            sites=conclusion["sites"],
            threshold=told.threshold,
            losses=conclusion["losses"],
        )
        if experiment.get("encoder") is not None:
            facts["encoder"] = str(experiment["encoder"])
        facts |= {"claims": conclusion["claims"], "audit": agreed.name, "strata": conclusion["strata"]}
        write_site(self.folder, half.verdict(told), Previews.of(self.dataset), facts)
        write_report(self.folder)


AFTER = ("hundredths", "scores", "figures")  # questions about the labels that are judged


def checked(conclusion: Any, class_names: tuple[str, ...]) -> dict[str, Any]:
    """What the coordinator concluded, for the report of this site; texts are cut, and unknown classes left out."""
    try:
        demand("the coordinator's conclusion", conclusion, CONCLUSION)
    except DataError as problem:
        raise for_others(problem, "message") from None
    claims = {
        name: value for name, value in conclusion["claims"].items() if name in {key.rstrip("?") for key in CLAIMS}
    }
    claims["said"], claims["reason"] = one_line(claims["said"], 40), one_line(claims["reason"], LONGEST)
    if "recognised" in claims:
        claims["recognised"] = {name: claims["recognised"].get(name) for name in class_names}
    if "unknown_classes" in claims:
        claims["unknown_classes"] = [name for name in claims["unknown_classes"] if name in class_names]
    losses = {name: conclusion["losses"][name] for name in CANDIDATES if name in conclusion["losses"]}
    last, sizes = conclusion["strata"]["last"], conclusion["strata"]["sizes"]
    if len(last) != len(sizes) or sorted(set(last)) != last or min(last, default=0) < 0 or max(last, default=0) >= BINS:
        raise for_others(DataError("the strata that the coordinator tells are no strata."), "message")
    return {**conclusion, "claims": claims, "losses": losses}


def write_order(here: AuditedHere, run: dict[str, Any], reply: Payload) -> None:
    """After a run that was no audit: its last model puts the labels in order. It has seen them, so it says no more."""
    everything = np.ones(len(here.labels.given), bool)
    opinions = SiteOpinions.collected([(everything, reply)], len(everything), len(here.class_names), held_out=False)
    told = Told(common=np.ones(len(here.class_names), bool))
    verdict = SiteHalf(here.labels, opinions).verdict(told)
    experiment = run["experiment"]
    facts = facts_of(
        here.dataset,
        method=str(here.host.method),
        judge=str(find_judge(RUN_JUDGE)),
        rounds=experiment["rounds"],
        seed=experiment["seed"],
        sites=run["clients"],
        threshold=told.threshold,
        losses={},
    )
    facts |= {
        "assumptions": [],
        "p_wrong": NO_P_WRONG,
        "claims": {"said": CANNOT_TELL, "reason": SEEN, "skill": None, "calls": 0},
    }
    write_site(here.folder, verdict, Previews.of(here.dataset), facts)
    write_report(here.folder)


def set_aside_earlier(folder: Path) -> Path | None:
    """Move an earlier audit away whose labels people have looked at, so that nothing of it is taken for the new one."""
    if not any((folder / name).exists() for name in OF_PEOPLE):
        return None
    number = 1
    while (folder / f"{EARLIER}-{number}").exists():
        number += 1
    place = folder / f"{EARLIER}-{number}"
    place.mkdir()
    for name in FILES:
        if (folder / name).exists():
            (folder / name).rename(place / name)
    return place


def with_judge(host: Host, judge: str) -> Host:
    """The same host for a question of this judge."""
    host.judge = find_judge(judge)
    host.setup = replace(host.setup, judge=judge)
    return host
