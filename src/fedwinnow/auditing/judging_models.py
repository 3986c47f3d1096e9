"""The models that judge: a federation that trains for the audit, or those of a finished run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np

from fedwinnow import catalogue
from fedwinnow.errors import DataError, UsageError
from fedwinnow.experiment.identity import identity_of, refuse_changed
from fedwinnow.experiment.play import Execution, Player, Watcher, play_stage
from fedwinnow.experiment.prepare import Stage, prepare, restricted
from fedwinnow.experiment.run_folder import RunFolder
from fedwinnow.experiment.settings import Experiment
from fedwinnow.federation.host import KEPT
from fedwinnow.federation.judge import Judge
from fedwinnow.federation.method import Method, find_method
from fedwinnow.mathematics.payload import Payload
from fedwinnow.randomness import Floats, Integers, permutation
from fedwinnow.scene.scene import Scene

PLAIN_LOSS = "cross_entropy"  # the default, which a judge with a prior replaces; another loss was chosen by the user


@dataclass(frozen=True, eq=False)
class Judged:
    """The scores of all sites, in the order of the holdings; each site keeps its own part."""

    stage: Stage
    score: Floats  # per holding: the log-odds that its label is wrong
    other: Integers  # per holding: the likeliest class besides the given one
    compared: dict[int, tuple[Integers, Integers]]  # per site: its worst samples, and what to compare each with

    @property
    def p_wrong(self) -> Floats:
        """The score from 0 to 1: how much of their belief the models put on other labels than the given one."""
        return np.asarray(0.5 * (1 + np.tanh(self.score / 2)))


def find_judge(spec: str) -> Judge:
    """The judge of this spec."""
    return cast(Judge, catalogue.make("judges", spec))


def prepare_audit(experiment: Experiment, judge: Judge, scene: Scene | None = None) -> Stage:
    """The stage of the training; `scene` replaces the scene of the settings.

    If the judge adds a prior, logit adjustment replaces plain cross-entropy.
    """
    method = find_method(experiment.method)
    refuse_unfit_method(method)
    if judge.prior and method.loss == PLAIN_LOSS and "loss" not in method.unused():
        method = dataclasses.replace(method, loss="logit_adjustment")
    return prepare(dataclasses.replace(experiment, method=method), scene)


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
    replies: dict[int, Payload] = {}
    for number, (part, judged) in enumerate(parts_of(stage, judge), start=1):
        place = RunFolder(folder / f"half-{number}" if judge.federations > 1 else folder)
        with place.locked():
            play_stage(part, place, execution, watchers)
            replies |= ask(part, place, execution, judged)
    return collected(stage, replies)


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
        return collected(stage, ask(stage, place, execution, everybody(stage)))


def head(path: Path) -> str:
    """The beginning of a safetensors file, which names its tensors."""
    with path.open("rb") as stream:
        return stream.read(2**16).decode("latin-1")


def parts_of(stage: Stage, judge: Judge) -> list[tuple[Stage, list[int]]]:
    """The federations that train, each with the sites that it judges: one judges all, or each half the other half."""
    sites = everybody(stage)
    if judge.federations == 1:
        return [(stage, sites)]
    if len(sites) < 2:
        raise UsageError(f"--judge {judge} needs two sites or more; there is {len(sites)}.")
    order = permutation(stage.experiment.seed, "halves", len(sites))
    halves = [sorted(sites[place] for place in order[start::2]) for start in (0, 1)]
    return [(half_of(stage, halves[0]), halves[1]), (half_of(stage, halves[1]), halves[0])]


def half_of(stage: Stage, sites: list[int]) -> Stage:
    """The same stage with these sites only; the same share of them trains in a round."""
    keep = np.isin(stage.sites.holdings.client, sites)
    part = dataclasses.replace(
        stage.sites, holdings=restricted(stage.sites.holdings, keep), given=stage.sites.given[keep]
    )
    share = stage.experiment.participation
    experiment = dataclasses.replace(stage.experiment, participation=share if share == 1 else share / 2)
    return dataclasses.replace(stage, sites=part, places=stage.places[keep], experiment=experiment)


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


def collected(stage: Stage, replies: dict[int, Payload]) -> Judged:
    """The replies in the order of the holdings."""
    holdings = stage.scene.holdings
    score, other = np.zeros(len(holdings.rows)), np.zeros(len(holdings.rows), np.int64)
    compared = {}
    for site, reply in replies.items():
        score[holdings.of(site)], other[holdings.of(site)] = reply["score"].numpy(), reply["other"].numpy()
        compared[site] = (reply["worst"].numpy(), reply["near"].numpy())
    return Judged(stage, score, other, compared)
