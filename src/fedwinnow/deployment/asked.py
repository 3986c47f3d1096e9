"""What a coordinator asks of a site, as the site understands it by its own installed version."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

from fedwinnow import catalogue
from fedwinnow.deployment.agreement import experiment_of
from fedwinnow.deployment.asked_in_words import (
    audit_in_words,
    leaves_in_words,
    models_in_words,
    optimizer_in_words,
    part_in_words,
    settings_in_words,
    spec_in_words,
)
from fedwinnow.deployment.error_codes import for_others
from fedwinnow.deployment.foreign_text import one_line
from fedwinnow.deployment.site_spending import check_plan, promise_of
from fedwinnow.errors import DataError, UsageError
from fedwinnow.experiment.encoding import SUMS
from fedwinnow.experiment.settings import Experiment
from fedwinnow.federation.method import Method, find_method
from fedwinnow.federation.privacy_rules import refuse_unaccounted
from fedwinnow.federation.summing.summed_form import EXPOSED
from fedwinnow.mathematics.optimizers import Optimizer
from fedwinnow.mathematics.payload import Exposure
from fedwinnow.mathematics.privacy import find_privacy
from fedwinnow.options import format_spec, parse_spec

# Of a message: what says how far the run is, who is there, and what follows from the sites' own sums.
PASSING = ("kind", "scene", "clients", "frozen", "done", "columns")  # columns: for join --check
# Shown by lines of their own.
BY_THEMSELVES = ("fedwinnow", "experiment", "task", "encoder", "start", "audit", "masks_from")
OF_ONE_PART = ("part", "judged")  # of an audit, which trains several times: which time it is, and whom it judges
SUMS_EXPOSE: dict[str, Exposure] = {SUMS: "client"}
COUNTS: dict[str, Exposure] = {"counts": "client"}  # of labels, in an audit

# Settings that have rules of their own, and those that neither let others learn more nor let a step grow.
RULED = ("method", "model", "optimizer", "encoder", "rounds", "epochs", "batch_size")
HARMLESS = (
    *("test", "trusted", "participation", "views", "clip", "drop_last", "batch_norm", "mixed_precision"),
    *("eval_every", "least_count", "seed", "secure_sums", "secure_threshold"),
)
SHOWN = tuple(name for name in HARMLESS if name not in ("test", "secure_sums"))  # of no concern; has its own line


@dataclass(frozen=True)
class Asked:
    """What a site is asked for. `terms` stay as they are for the whole run."""

    terms: dict[str, Any]
    experiment: Experiment
    method: Method
    optimizer: Optimizer
    exposes: dict[str, Exposure]  # what may leave the site, and what can be learned from it
    samples: int  # of this site
    done: int = 0  # rounds that were played before, where a run is continued
    coordinator: str | None = None  # the fingerprint of its key; None: not known
    parameters: int | None = None  # the weights of the largest model; None: not counted
    known: bool = False  # whether this site took part in the run before

    @property
    def text(self) -> str:
        """The terms as one text: two runs with the same one ask for the same."""
        return json.dumps(self.terms, sort_keys=True)

    @property
    def from_seed(self) -> bool:
        """Whether the first model is the one that every site makes itself from the seed."""
        return self.terms.get("start") is None

    @property
    def audit(self) -> Any:
        """What an audit of labels is asked for with; None if it is none."""
        return self.terms.get("audit") or None

    @property
    def secure_sums(self) -> str:
        """Whether the coordinator sees sums only, and where the masks come from."""
        return f"yes, masks from {self.terms.get('masks_from')}" if self.experiment.secure_sums else "no"

    def others(self) -> dict[str, Any]:
        """What is asked for besides: other settings that are not at their default, and further terms."""
        usual = {field.name: field.default for field in dataclasses.fields(Experiment)}
        told = self.terms["experiment"]
        settings = {
            name: told[name]
            for name in told
            if name not in (*RULED, *HARMLESS) and getattr(self.experiment, name) != usual[name]
        }
        return settings | {name: value for name, value in self.terms.items() if name not in BY_THEMSELVES}

    def lines(self) -> list[str]:
        """What is asked, for the people at the site."""
        one = self.experiment
        size = "" if self.parameters is None else f", {self.parameters:,} weights"
        first = "made here from the seed" if self.from_seed else f"sent by the coordinator ({self.terms['start']})"
        epochs = f"in a round, each sample is seen {one.epochs} time{'' if one.epochs == 1 else 's'} (epochs)"
        training = [epochs, f"{one.batch_size} samples per step", optimizer_in_words(self.optimizer)]
        played = f", of which {self.done} are played" if self.done else ""
        found = [
            f"coordinator's key: {self.coordinator or 'not known'}",
            f"method: {part_in_words('methods', self.method)}",
            f"what leaves this site: {leaves_in_words(self.exposes, self.method.forwarded())}",
            f"encoder: {'none' if one.encoder is None else spec_in_words('encoders', one.encoder)}",
            f"model: {models_in_words(one.model)}{size}. Its first weights are {first}",
            f"rounds: {one.rounds}{played}",
            f"training: {', '.join(training)}",
            f"privacy: {promise_of(one.privacy)}",
            f"secure sums: {self.secure_sums}",
            f"audit of labels: {audit_in_words(self.audit)}",
        ]
        found += [f"also: {text}" for text in settings_in_words(one, SHOWN)]
        found += [f"also: {one_line(name, 80)} = {one_line(value)}" for name, value in self.others().items()]
        return [one_line(line, 1000) for line in found]


def terms_of(message: dict[str, Any]) -> dict[str, Any]:
    """The part of a message, or of its `run`, that may not change during a run."""
    terms = {key: value for key, value in message.items() if key not in PASSING}
    if message.get("scene") is not None:  # the shape of a simulation's samples is known from the scene
        terms["task"] = None
    if isinstance(terms.get("audit"), dict):
        terms["audit"] = {key: value for key, value in terms["audit"].items() if key not in OF_ONE_PART}
    if isinstance(terms.get("encoder"), dict):  # the scaling is known only after all sites have told their sums
        terms["encoder"] = {"hash": terms["encoder"].get("hash")}
    return terms


def what_is_asked(message: dict[str, Any], samples: int, coordinator: str | None = None) -> Asked:
    """What a hello, or the `run` of a later message, asks for; an error if it cannot be understood here."""
    experiment = experiment_of(message)
    method = find_method(experiment.method)
    optimizer = catalogue.make("optimizers", experiment.optimizer)
    if not isinstance(optimizer, Optimizer):
        raise for_others(UsageError("the coordinator sent an optimiser that is none."), "settings")
    done = message.get("done", 0)
    if type(done) is not int or not 0 <= done <= experiment.rounds:
        raise for_others(DataError("the coordinator does not say how many rounds were played."), "message")
    check_plan(experiment.privacy)
    if experiment.privacy is not None:
        if message.get("audit"):
            raise for_others(UsageError("an audit sends counts, which --privacy does not cover."), "settings")
        refuse_unaccounted(method, find_privacy(experiment.privacy), experiment)
    exposes = method.exposed() | (SUMS_EXPOSE if message.get("encoder") else {})
    exposes |= COUNTS if message.get("audit") else {}
    if experiment.secure_sums:
        exposes = dict(EXPOSED)
    return Asked(terms_of(message), experiment, method, optimizer, exposes, samples, done, coordinator)


def spec_text(spec: Any) -> str:
    """A part as one text; a table has its name under `kind`."""
    if isinstance(spec, dict) and isinstance(spec.get("kind"), str):
        return format_spec(spec["kind"], {key: value for key, value in spec.items() if key != "kind"})
    return "by the form of the samples" if spec is None else str(spec)


def name_in(spec: Any) -> str:
    """The name of a part in its spec."""
    if spec is None:
        return "none"
    if isinstance(spec, dict):
        return str(spec.get("kind"))
    return parse_spec(spec)[0] if isinstance(spec, str) else str(getattr(spec, "name", spec))
