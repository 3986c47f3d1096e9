"""The models that judge: federations that train for the audit, each without the labels it judges, or a finished run.

Every site splits its samples into folds. One federation per fold trains without it, and its models judge it, so that
no opinion about a label comes from a model that has seen the label.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from fedwinnow import catalogue
from fedwinnow.auditing.judges import CANDIDATES, COMPARED, FOLLOWED
from fedwinnow.data.content_hash import contents_in, contents_of_arrays
from fedwinnow.errors import DataError, UsageError
from fedwinnow.experiment.identity import identity_of, refuse_changed
from fedwinnow.experiment.play import Execution, Player, Watcher, play_stage
from fedwinnow.experiment.prepare import Mask, Stage, prepare, restricted
from fedwinnow.experiment.run_folder import RunFolder
from fedwinnow.experiment.settings import Experiment
from fedwinnow.federation.host import KEPT
from fedwinnow.federation.judge import Judge
from fedwinnow.federation.method import Method, find_method
from fedwinnow.mathematics.payload import Payload
from fedwinnow.randomness import Floats, Integers, permutation
from fedwinnow.scene.folds import folds
from fedwinnow.scene.scene import Scene

PLAIN_LOSS = "cross_entropy"  # the default, which a judge with a prior replaces; another loss was chosen by the user


FOLDS = 3
TINY = 1e-12  # stands for a probability of 0 in a log loss


@dataclass(frozen=True, eq=False)
class SiteOpinions:
    """What the models think of the labels of one site; it stays there."""

    score: Floats  # per sample: the log-odds that its label is wrong
    other: Integers  # per sample: the likeliest class besides the given one
    worst: Integers  # the most suspicious samples
    near: Integers  # what to compare each of them with
    # Per sample and class: the mean probability under models that have not seen the label. None where they have seen
    # it, or where the judge gives no probabilities: then there is an order and nothing more.
    classes: NDArray[np.float32] | None = None
    # Per sample of a table: how much each field speaks against the label, and what is typical of its class.
    evidence: dict[int, tuple[Floats, Floats]] = dataclasses.field(default_factory=dict)
    candidates: NDArray[np.float32] | None = None  # what a judge chooses among: as `classes`, one after the other
    scores: Floats | None = None  # the score of every sample under each of them

    @classmethod
    def collected(cls, replies: list[tuple[Mask, Payload]], samples: int, classes: int, *, held_out: bool) -> Self:
        """The replies of a site to all federations, of each those labels that it judges."""
        score, other = np.zeros(samples), np.zeros(samples, np.int64)
        told = held_out and all("classes" in reply for _, reply in replies)
        several = held_out and bool(replies) and all("candidates" in reply for _, reply in replies)
        believed = np.zeros((samples, classes), np.float32)
        candidates = np.zeros((len(CANDIDATES), samples if several else 0, classes), np.float32)
        scores = np.zeros((len(CANDIDATES), samples))
        evidence: dict[int, tuple[Floats, Floats]] = {}
        worst: list[Integers] = []
        near: list[Integers] = []
        for mask, reply in replies:
            score[mask] = reply["score"].numpy()[mask]
            other[mask] = reply["other"].numpy()[mask]
            if told:
                believed[mask] = reply["classes"].numpy()[mask]
            if several:
                candidates[:, mask] = reply["candidates"].numpy()[:, mask]
                scores[:, mask] = reply["scores"].numpy()[:, mask]
            followed = reply["worst"].numpy()
            judged_here = mask[followed]
            for row in np.flatnonzero(judged_here[: len(reply.get("against", ()))]).tolist():
                fields = (reply["against"][row].double().numpy(), reply["typical"][row].double().numpy())
                evidence[int(followed[row])] = fields
            worst.append(followed[judged_here])
            near.append(reply["near"].numpy()[judged_here])
        return cls(
            score,
            other,
            np.concatenate([np.zeros(0, np.int64), *worst]),
            np.concatenate([np.zeros((0, 2, COMPARED), np.int64), *near]),
            believed if told else None,
            evidence,
            candidates if several else None,
            scores if several else None,
        )

    def losses(self, given: Integers) -> Floats:
        """The sum of the held-out log losses of the given labels under each candidate."""
        assert self.candidates is not None
        chosen = self.candidates[:, np.arange(len(given)), given].astype(np.float64)
        return np.asarray(-np.log(np.maximum(chosen, TINY)).sum(1))

    def with_best(self, best: int | None, given: Integers) -> SiteOpinions:
        """The opinions of the candidate that was chosen, and the most suspicious samples by its score."""
        found = self
        if best is not None:
            assert self.candidates is not None
            assert self.scores is not None
            others = self.candidates[best].copy()
            others[np.arange(len(given)), given] = -1
            found = dataclasses.replace(
                self, score=self.scores[best], other=others.argmax(1), classes=self.candidates[best]
            )
        first = np.argsort(-found.score[self.worst], kind="stable")[:FOLLOWED]
        return dataclasses.replace(found, worst=self.worst[first], near=self.near[first])


@dataclass(frozen=True, eq=False)
class Judged:
    """The opinions of all sites that hold samples, in a simulation."""

    stage: Stage
    sites: dict[int, SiteOpinions]  # by the number of the site

    @property
    def score(self) -> Floats:
        """Per holding of the scene."""
        return np.concatenate([one.score for one in self.sites.values()])

    @property
    def other(self) -> Integers:
        """Per holding of the scene."""
        return np.concatenate([one.other for one in self.sites.values()])

    @property
    def classes(self) -> NDArray[np.float32] | None:
        """Per holding of the scene; None where there are no probabilities."""
        found = [one.classes for one in self.sites.values() if one.classes is not None]
        return np.concatenate(found) if len(found) == len(self.sites) else None


@dataclass(frozen=True, eq=False)
class JudgingPart:
    """One of the federations that train: which labels its models judge, and at which sites they are."""

    folder: str  # beside the others; empty where there is one only
    stage: Stage
    sites: list[int]
    judged: Mask  # per holding of the scene


def find_judge(spec: str) -> Judge:
    """The judge of this spec."""
    return cast(Judge, catalogue.make("judges", spec))


def prepare_audit(experiment: Experiment, judge: Judge, scene: Scene | None = None) -> Stage:
    """The stage of the training; `scene` replaces the scene of the settings."""
    return prepare(for_judge(experiment, judge), scene)


def for_judge(experiment: Experiment, judge: Judge) -> Experiment:
    """The same training for a judge: if it adds a prior, logit adjustment replaces plain cross-entropy."""
    method = find_method(experiment.method)
    refuse_unfit_method(method)
    if experiment.secure_sums:
        raise UsageError(
            "--secure-sums was given, but an audit must see answers of every single site ('sureness', 'figures', and "
            "'scores' with --budget), because its report has a line per site; allowed: an audit without it."
        )
    if judge.prior and method.loss == PLAIN_LOSS and "loss" not in method.unused():
        method = dataclasses.replace(method, loss="logit_adjustment")
    return dataclasses.replace(experiment, method=method)


def refuse_unfit_method(method: Method) -> None:
    """Refuse methods that need pooled data or the truth; an audit can have trusted and public samples."""
    reasons = {
        "pooled_data": "pools the data of all sites, which an audit must not do",
        "truth": "gets the true labels, so it cannot find the wrong ones",
    }
    for need in method.needed():
        if need in reasons:
            raise UsageError(f"method '{method.name}' {reasons[need]}. Choose another --method.")


def train_and_judge(
    stage: Stage, folder: Path, judge: Judge, execution: Execution, watchers: tuple[Watcher, ...] = ()
) -> Judged:
    """Train in a folder, or continue an interrupted training there, and let every site judge its labels."""
    execution = dataclasses.replace(execution, judge=str(judge), resume=True)
    replies: list[tuple[Mask, dict[int, Payload]]] = []
    for part in parts_of(stage, judge):
        place = RunFolder(folder / part.folder)
        with place.locked():
            if judge.trains:
                play_stage(part.stage, place, execution, watchers)
            replies.append((part.judged, ask(part.stage, place, execution, part.sites)))
    return collected(stage, replies, held_out=True)


def judge_run(stage: Stage, folder: Path, judge: Judge, execution: Execution) -> Judged:
    """Let the model of a finished run judge."""
    refuse_unfit_method(stage.method)
    if judge.federations > 1:
        raise UsageError(f"--judge {judge} trains two halves of the federation, so it cannot take --run.")
    execution = dataclasses.replace(execution, judge=str(judge))
    place = RunFolder(folder)
    with place.locked():
        if not (place.path / "state.safetensors").exists():
            raise DataError(f"{folder}: this run has no model yet. Continue it with --resume, or audit without --run.")
        if judge.remembers and not any(KEPT in head(path) for path in place.memory.glob("*.safetensors")):
            raise UsageError(
                f"--judge {judge} needs notes that sites make while they train for an audit, and {folder} was not "
                "trained for one. Allowed with --run: final and filter."
            )
        refuse_changed(place, identity_of(stage))
        replies = ask(stage, place, execution, everybody(stage))
        return collected(stage, [(np.ones(len(stage.scene.given), bool), replies)], held_out=False)


def head(path: Path) -> str:
    """The beginning of a safetensors file, which names its tensors."""
    with path.open("rb") as stream:
        return stream.read(2**16).decode("latin-1")


def parts_of(stage: Stage, judge: Judge) -> list[JudgingPart]:
    """The federations that train: one without each fold, or two halves of the sites that judge each other."""
    if not judge.trains:
        if stage.sites.shape.kind == "tokens":
            raise UsageError(
                f"--judge {judge} was given, but which texts are alike is not known from words alone; give --encoder "
                "too (see `fedwinnow encoders`), or choose another judge."
            )
        return [JudgingPart("", stage, everybody(stage), np.ones(len(stage.scene.given), bool))]
    return folds_of(stage) if judge.federations == 1 else halves_of(stage, judge)


def folds_of(stage: Stage) -> list[JudgingPart]:
    """One federation per fold; a fold that no site has, because all are small, is left out."""
    train = stage.scene.dataset.train
    fold = folds(stage.scene.holdings, train.groups, FOLDS, stage.experiment.seed, contents_in(train.features))
    return [
        JudgingPart(
            f"fold-{number + 1}", without(stage, fold == number), sites_with(stage, fold == number), fold == number
        )
        for number in range(FOLDS)
        if (fold == number).any()
    ]


def without(stage: Stage, fold: Mask) -> Stage:
    """The same stage without the labels of a fold."""
    keep = ~fold[stage.places]
    return dataclasses.replace(
        stage, **training_on(stage, keep), left_out=contents_of_arrays("the fold that is judged", [fold])
    )


def sites_with(stage: Stage, mask: Mask) -> list[int]:
    """The sites that hold any of these samples."""
    found: list[int] = np.unique(stage.scene.holdings.client[mask]).tolist()
    return found


def halves_of(stage: Stage, judge: Judge) -> list[JudgingPart]:
    """Two halves of the sites; each judges the sites of the other half."""
    sites = everybody(stage)
    if len(sites) < 2:
        raise UsageError(f"--judge {judge} needs two sites or more; there is {len(sites)}.")
    order = permutation(stage.experiment.seed, "halves", len(sites))
    halves = [sorted(sites[place] for place in order[start::2]) for start in (0, 1)]
    return [
        JudgingPart(
            f"half-{number + 1}", half_of(stage, mine), other, np.asarray(np.isin(stage.scene.holdings.client, other))
        )
        for number, (mine, other) in enumerate((halves, halves[::-1]))
    ]


def half_of(stage: Stage, sites: list[int]) -> Stage:
    """The same stage with these sites only; the same share of them trains in a round."""
    keep = np.isin(stage.sites.holdings.client, sites)
    share = stage.experiment.participation
    experiment = dataclasses.replace(stage.experiment, participation=share if share == 1 else share / 2)
    return dataclasses.replace(stage, **training_on(stage, keep), experiment=experiment)


def training_on(stage: Stage, keep: Mask) -> dict[str, Any]:
    """What of a stage changes if only these of its training samples are kept."""
    holdings = restricted(stage.sites.holdings, keep)
    part = dataclasses.replace(stage.sites, holdings=holdings, given=stage.sites.given[keep])
    return {"sites": part, "places": stage.places[keep]}


def everybody(stage: Stage) -> list[int]:
    """The sites that hold samples."""
    found: list[int] = np.flatnonzero(stage.scene.holdings.sizes).tolist()
    return found


def ask(stage: Stage, place: RunFolder, execution: Execution, sites: Iterable[int]) -> dict[int, Payload]:
    """The replies of these sites, judged with the last checkpoint in the folder."""
    player = Player(stage, place, execution, ())
    try:
        player.restore()
        return dict(player.federation.ask_all("audit", tuple(sites)))
    finally:
        player.federation.backend.close()


def collected(stage: Stage, replies: list[tuple[Mask, dict[int, Payload]]], *, held_out: bool) -> Judged:
    """The opinions of every site; the masks say which holdings a federation judges."""
    holdings, found = stage.scene.holdings, {}
    for site in everybody(stage):
        mine = holdings.of(site)
        of_site = [(mask[mine], by_site[site]) for mask, by_site in replies if site in by_site]
        samples = mine.stop - mine.start
        found[site] = SiteOpinions.collected(of_site, samples, stage.scene.classes, held_out=held_out)
    return Judged(stage, found)
