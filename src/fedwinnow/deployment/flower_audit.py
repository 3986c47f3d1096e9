"""An audit over a Flower grid: the federations that train, the questions of the coordinator's half, the conclusion.

The sites' half is at the sites. What comes from there are counts, and models as in any run.
"""

from __future__ import annotations

import dataclasses
import json
import math
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.serverapp import Grid

from fedwinnow.auditing.audit import (
    AuditOutcome,
    AuditSettings,
    encoder_facts,
    facts_in,
    refuse_audited,
    write_coordinator,
)
from fedwinnow.auditing.judging_models import JudgingPart, ask, find_judge, for_judge
from fedwinnow.auditing.server_half import Conclusion, ServerHalf
from fedwinnow.auditing.site_half import Sums, Told
from fedwinnow.auditing.wire_values import problem_with_answer, sums_from_payload, told_as_values
from fedwinnow.deployment.agreed_audit import AUDIT, AgreedAudit, names_of_parts, remote_parts
from fedwinnow.deployment.agreement import describe_run, hello_of
from fedwinnow.deployment.flower_backend import Flower, Roster
from fedwinnow.deployment.flower_run import AuditStep, DroppedSites, Terms, assembled
from fedwinnow.deployment.ledger_heads import Heads
from fedwinnow.errors import RunError, UsageError
from fedwinnow.experiment.play import Execution, Watcher, play_stage
from fedwinnow.experiment.prepare import Stage
from fedwinnow.experiment.run_folder import RunFolder
from fedwinnow.federation.host import Host
from fedwinnow.files import json_of, write_text
from fedwinnow.mathematics.payload import Payload, size_in_bytes
from fedwinnow.mathematics.strata import Strata

AGREEMENT = "agreement.json"  # what the sites were told, so that they can be asked about looks later
LEFT_OUT = "left out"  # said of a site that did not answer to the end
TRAINING = "training"
NAME = "audit-name.json"


@dataclass
class AuditOverNetwork:
    """An audit with the sites that have come."""

    roster: Roster
    stage: Stage
    agreed: AgreedAudit
    folder: Path
    execution: Execution
    terms: Terms

    def __post_init__(self) -> None:
        self.parts = remote_parts(self.stage, self.agreed.kind)
        self.heads = Heads(self.folder, self.terms.say)
        self.lost: dict[int, str] = {}  # the sites that take no further part, and why
        self.last: Flower | None = None  # reaches the sites, as they know the run of the last part

    def train(self, part: JudgingPart, watchers: tuple[Watcher, ...]) -> None:
        """Play one federation, and let its sites keep what its model thinks of their labels."""
        many = len(self.parts) if self.agreed.kind.trains else 0
        place_of = [one.folder for one in self.parts].index(part.folder) + 1
        self.terms.step(AuditStep("training" if many else "judging", place_of, many))
        run = describe_run(part.stage, simulated=self.stage.simulated)
        judged = None if part.stage is self.stage or part.folder.startswith("fold-") else tuple(part.sites)
        agreed = dataclasses.replace(self.agreed, part=part.folder, judged=judged)

        def reach(host: Host) -> Flower:
            self.terms.agree(size_in_bytes(host.model.payload()))
            described = run | ({"frozen": host.frozen} if host.frozen else {}) | {AUDIT: agreed.as_value()}
            self.last = Flower(host, self.roster, described, self.stage.site_names, self.terms.timeout, self.heads)
            return self.last

        execution = dataclasses.replace(
            self.execution, judge=self.agreed.judge, resume=True, backend="flower", reach=reach
        )
        place = RunFolder(self.folder / TRAINING / part.folder)
        with place.locked():
            if self.agreed.kind.trains:
                play_stage(part.stage, place, execution, (*watchers, DroppedSites(self.terms.say)))
            self.terms.step(AuditStep("judging", place_of, many))
            everybody = range(len(self.stage.site_names))
            wanted = everybody if judged is None else part.sites
            came = ask(part.stage, place, execution, wanted)
        for site in wanted:
            if site not in came:
                self.lose(site, f"it did not answer after the training{f' of {part.folder}' if part.folder else ''}")

    def lose(self, site: int, reason: str) -> None:
        """A site takes no further part; an error where too few are left, or nobody may be left out."""
        if site in self.lost:
            return
        self.lost[site] = reason
        name, everybody = self.stage.site_names[site], len(self.stage.site_names)
        self.terms.step(AuditStep("lost", site=name, detail=reason))
        here = f"{self.folder}: the same command with --resume goes on where it was"
        if self.execution.on_client_error == "stop":
            raise RunError(
                f"the audit stops at {name}: {reason}. --on-client-error drop would go on without it. {here}"
            )
        self.terms.say(f"the audit goes on without {name}: {reason}")
        needed = max(1, math.ceil(self.execution.quorum * everybody - 1e-9))
        if everybody - len(self.lost) < needed:
            raise RunError(
                f"only {everybody - len(self.lost)} of {everybody} sites take part in the audit; the quorum is "
                f"{needed}. {here}."
            )

    def ask(self, ask: str, told: dict[int, Told]) -> dict[int, Sums]:
        """The counts with which the sites answer a question; a site whose answer cannot be used is lost."""
        self.terms.step(AuditStep("counting", detail=ask))
        contents = {site: self.message("count", site, so_far, ask=ask) for site, so_far in told.items()}
        assert self.last is not None
        found: dict[int, Sums] = {}
        for site, answer in self.last.asked(contents, self.stage.experiment.rounds).items():
            sums = {} if answer.error else sums_from_payload(answer.reply)
            problem = answer.error or problem_with_answer(ask, sums, self.stage.scene.classes)
            if problem is not None:
                self.lose(site, problem)
            else:
                found[site] = sums
        return self.alike({site: found[site] for site in told if site in found}, ask)

    def alike(self, found: dict[int, Sums], ask: str) -> dict[int, Sums]:
        """Those with the numbers that most sites told: one that leaves out a part must not silence all others."""
        kinds = [tuple(sorted(sums)) for sums in found.values()]
        usual = max(set(kinds), key=lambda kind: (kinds.count(kind), kind), default=())
        for site, sums in found.items():
            if tuple(sorted(sums)) != usual:
                self.lose(site, f"its answer to '{ask}' has other numbers than those of other sites")
        return {site: sums for site, sums in found.items() if site not in self.lost}

    def message(self, kind: str, site: int, told: Told, **more: Any) -> tuple[dict[str, Any], Payload]:
        """A message about what a site was told so far."""
        assert self.last is not None
        facts, payload = told_as_values(told)
        return self.last.facts(kind, site) | {"told": facts, **more}, payload

    def conclude(self, settings: AuditSettings) -> tuple[Conclusion, Strata]:
        """All questions; then every site writes its folder."""
        scene, least = self.stage.scene, self.stage.experiment.least_count
        numbers = [site for site in range(len(self.stage.site_names)) if site not in self.lost]
        if self.stage.simulated:
            numbers = [site for site in numbers if scene.holdings.sizes[site]]
        server = ServerHalf(self, numbers, scene.data.class_names, least)
        conclusion = server.conclude(dataclasses.replace(settings.wishes, strata=True))
        strata = Strata.of(np.sum(list(conclusion.scores.values()), axis=0))
        told = {
            "threshold": conclusion.threshold,
            "losses": conclusion.losses,
            "sites": len(conclusion.figures),
            "claims": conclusion.as_value(),
            "strata": strata_as_value(strata),
        }
        self.terms.step(AuditStep("writing"))
        contents = {
            site: self.message("conclude", site, so_far, conclusion=told) for site, so_far in conclusion.told.items()
        }
        assert self.last is not None
        for site, answer in self.last.asked(contents, self.stage.experiment.rounds).items():
            if answer.error is not None:  # its counts are in the conclusion already
                self.terms.say(f"{self.stage.site_names[site]} could not write its part: {answer.error}")
        return conclusion, strata

    def end(self) -> None:
        """Tell every site that the audit is over."""
        assert self.last is not None
        reasons = {site: {"reason": self.lost.get(site, "")} for site in range(len(self.stage.site_names))}
        for reason, sites in self.last.end(self.stage.experiment.rounds, reasons).items():
            names = ", ".join(self.stage.site_names[site] for site in sites)
            self.terms.say(f"{names}: not told that the audit is over ({reason})")
        self.terms.step(AuditStep("over"))

    def line(self, site: int, conclusion: Conclusion) -> dict[str, Any]:
        """The line of sites.csv about a site."""
        name = self.stage.site_names[site]
        if site not in conclusion.figures:
            reason = self.lost.get(site, "It has no samples.")
            unknown = dict.fromkeys(("samples", "judged", "wrong_at_least", "wrong_at_most", "precision_at_least"))
            return {**unknown, "site": name, "to_review": 0, "said": LEFT_OUT, "reason": reason, "folder": ""}
        return {**conclusion.line(site, name, self.samples(site)), "folder": ""}

    def samples(self, site: int) -> int | None:
        """How many samples a site has, if it has told that."""
        if self.stage.simulated:
            return int(self.stage.scene.holdings.sizes[site])
        return int(self.stage.scene.holdings.sizes[site]) or None


def strata_as_value(strata: Strata) -> dict[str, list[int]]:
    """Strata as a file and a message have them."""
    return {"last": strata.last.tolist(), "sizes": strata.sizes.tolist()}


def coordinate_audit(
    grid: Grid,
    settings: AuditSettings,
    out: Path,
    execution: Execution,
    terms: Terms,
    watchers: tuple[Watcher, ...] = (),
    *,
    group: str | None = None,
) -> AuditOutcome:
    """Audit with the sites of a grid, and write what the coordinator gets: counts."""
    judge = find_judge(settings.judge)
    experiment = for_judge(settings.experiment, judge)
    place = RunFolder(out)
    with place.locked():
        refuse_begun(out, execution)
        agreed = AgreedAudit(str(judge), group, name_for(out, execution), names_of_parts(judge))
        kept = next(iter(sorted((out / TRAINING).glob("*/encoder.json"))), None)
        roster, stage = assembled(
            grid, experiment, terms.under(execution), {AUDIT: agreed.as_value()}, None if kept is None else kept.parent
        )
        audit = AuditOverNetwork(roster, stage, agreed, out, execution, terms)
        for part in audit.parts:
            audit.train(part, watchers)
        conclusion, strata = audit.conclude(settings)
        facts = facts_in(settings, stage, conclusion) | encoder_facts(stage.experiment.encoder, None)
        facts |= {"claims": conclusion.as_value(), "audit": audit.agreed.name, "strata": strata_as_value(strata)}
        lines = [audit.line(site, conclusion) for site in range(len(stage.site_names))]
        outcome = AuditOutcome(out, lines, facts | {"truth": None})
        write_agreement(out, audit, {site: strata.sizes_of(one).tolist() for site, one in conclusion.scores.items()})
        write_coordinator(outcome)
        audit.end()
    return outcome


def refuse_begun(out: Path, execution: Execution) -> None:
    """Refuse to go on with an audit by accident; one that has ended may be told once more to sites that missed it."""
    if (out / "audit.json").exists() and "looks" in json_of(out / "audit.json"):
        raise UsageError(f"--out {out} holds an audit with figures from looks already. Choose another folder.")
    if not execution.resume:
        refuse_audited(out)
    if (out / TRAINING).exists() and not (execution.resume or execution.redo):
        raise UsageError(
            f"--out {out} holds an unfinished audit. Add --resume to continue it, or choose another folder."
        )


def name_for(out: Path, execution: Execution) -> str:
    """A name that no other audit has, so that a site does not take the opinions of another one for these."""
    path = out / NAME
    if not path.exists() or execution.redo:
        write_text(path, json.dumps({"name": secrets.token_hex(8)}) + "\n")
    return str(json_of(path, {"name": str})["name"])


def write_agreement(out: Path, audit: AuditOverNetwork, sizes: dict[int, list[int]]) -> None:
    """Keep what the sites were told, and how many labels each has per stratum, for a later question about looks."""
    assert audit.last is not None
    stage = audit.stage
    content = {
        "hello": hello_of(stage, simulated=stage.simulated) | {AUDIT: audit.agreed.as_value()},
        "run": audit.last.run,
        "sites": list(stage.site_names),
        "sizes": {stage.site_names[site]: counts for site, counts in sizes.items()},
    }
    write_text(out / AGREEMENT, json.dumps(content, indent=1) + "\n")
