"""The self-test: wrong labels are planted in a copy of the data, the audit runs on it, and all that is counted.

It answers, for this very data, what a person wants to know before an hour of reviewing: how many wrong labels are
found, how many calls are right, and what p_wrong is worth.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwinnow.auditing.calibration import (
    FEWEST_PLANTED,
    MIDDLES,
    Calibration,
    by_mixture,
    calibrate,
    histogram,
    reliability,
    wrong_share,
)
from fedwinnow.auditing.training import Judged, prepare_audit, train_and_judge
from fedwinnow.experiment.play import Manner, Watcher
from fedwinnow.federation.judgement import Judgement
from fedwinnow.randomness import Floats, Integers, uniforms
from fedwinnow.scene.holdings import rank_within
from fedwinnow.scene.scene import Scene

PLANTED = 0.1  # the share of every site's labels that is made wrong
GATHERED = 1.5  # the power by which confusions that many labels share count for more
ANYTHING_ELSE = 0.1  # the weight of a confusion that was not seen; much more, and planted labels are too easy to find


@dataclass(frozen=True, eq=False)
class SelfTest:
    """What came of it: the meaning of the log-odds, and the scores that show how good they are."""

    calibration: Calibration
    planted: Floats  # log-odds of the labels that were made wrong
    others: Floats  # log-odds of all other labels of the copy
    right_suggestions: NDArray[np.bool_]  # per planted label: whether the suggestion is the label it had
    audited: Floats  # log-odds of the labels themselves, without anything planted

    def figures(self, threshold: float) -> dict[str, Any] | None:
        """Precision, recall and calibration on this data; None where no test was made.

        Precision is that of the calls a person will see: in the copy it is higher, because more labels are wrong there.
        """
        if not len(self.planted):
            return None
        if not self.calibration.measured:
            return {"planted": len(self.planted), "too_few": True}
        called = self.calibration.p_wrong(self.planted) >= threshold
        p_wrong = self.calibration.p_wrong(self.audited)
        calls = p_wrong[p_wrong >= threshold]
        lines, error = self.reliability()
        return {
            "planted": len(self.planted),
            "too_few": False,
            "found": int(called.sum()),
            "recall": float(called.mean()),
            "precision": float(calls.mean()) if len(calls) else None,
            "suggestions_right": float(self.right_suggestions[called].mean()) if called.any() else None,
            "estimated_rate": wrong_share(histogram(self.planted), histogram(self.others)),
            "calibration_error": error,
            "calibration": lines,
        }

    def reliability(self) -> tuple[list[dict[str, Any]], float]:
        """Stated against observed shares, from halves of the planted labels that do not know of each other."""
        luck = uniforms(0, "self-test halves", 0, np.arange(len(self.planted))) < 0.5
        others = histogram(self.others)
        expected, stated = np.zeros(len(MIDDLES)), np.zeros(len(MIDDLES))
        for half in (luck, ~luck):
            fitted, held = histogram(self.planted[half]), histogram(self.planted[~half])
            stated += calibrate(fitted, others).shares / 2
            expected += wrong_share(fitted, others) * others.sum() * held / held.sum() / 2
        lines = reliability(stated, expected, others)
        gaps = [abs(line["stated"] - line["observed"]) * line["labels"] for line in lines if line["labels"]]
        return lines, float(sum(gaps) / others.sum())


def untested(judged: Judged) -> SelfTest:
    """No test: p_wrong is a mixture's guess."""
    return SelfTest(by_mixture(judged.score), np.zeros(0), np.zeros(0), np.zeros(0, bool), judged.score)


def self_test(
    judged: Judged, folder: Path, judgement: Judgement, manner: Manner, watchers: tuple[Watcher, ...]
) -> SelfTest:
    """Plant, audit the copy, and calibrate."""
    guess = by_mixture(judged.score)
    scene, planted = plant(judged, guess.p_wrong(judged.score))
    if planted.sum() < FEWEST_PLANTED:
        unknown = np.zeros(int(planted.sum()), bool)
        return SelfTest(guess, judged.score[planted], judged.score[~planted], unknown, judged.score)
    copy = train_and_judge(
        prepare_audit(judged.stage.experiment, judgement, scene), folder, judgement, manner, watchers
    )
    calibration = calibrate(histogram(copy.score[planted]), histogram(copy.score[~planted]))
    right = copy.other[planted] == judged.stage.scene.given[planted]
    return SelfTest(calibration, copy.score[planted], copy.score[~planted], right, judged.score)


def plant(judged: Judged, p_wrong: Floats) -> tuple[Scene, NDArray[np.bool_]]:
    """A copy of the scene with wrong labels planted among those that look right, and where they are."""
    scene = judged.stage.scene
    client, position, seed = scene.holdings.client, scene.holdings.position, scene.seed
    suspicious = p_wrong >= 0.5
    luck = uniforms(seed, "self-test", client, position)
    # Suspicious labels are no ground to plant on: a wrong label made wrong again may come out right.
    rank = rank_within(client, luck + suspicious)
    planted = ~suspicious & (rank < np.floor(PLANTED * scene.holdings.sizes[client] + 0.5))
    given = scene.given.copy()
    given[planted] = wrong_labels(judged, planted)
    return dataclasses.replace(scene, given=given, true=None, nominal=np.full(scene.clients, np.nan)), planted


def wrong_labels(judged: Judged, planted: NDArray[np.bool_]) -> Integers:
    """What the planted labels become: confused as the audit saw labels confused, and now and then anything else."""
    scene = judged.stage.scene
    weights = confusions(judged) + ANYTHING_ELSE
    np.fill_diagonal(weights, 0.0)
    steps = np.cumsum(weights / weights.sum(1, keepdims=True), axis=1)
    luck = uniforms(scene.seed, "self-test label", scene.holdings.client[planted], scene.holdings.position[planted])
    drawn = (luck[:, None] >= steps[scene.given[planted]]).sum(1)
    return np.asarray(np.minimum(drawn, scene.classes - 1), np.int64)


def confusions(judged: Judged) -> Floats:
    """How strongly the labels of every class (column) look like another one (row).

    Each label that the models deny counts by its log-odds, and what gathers in one cell counts for more. False alarms
    lie between classes that are alike; counted as much as the surest calls they would make planted labels harder to see
    than real ones. Where real mistakes have a system, the models half believe it; spread over all classes, planted
    labels would be easier to see than those.
    """
    classes = judged.stage.scene.classes
    cell = judged.other * classes + judged.stage.scene.given
    sums = np.bincount(cell, np.maximum(judged.score, 0.0), classes * classes).reshape(classes, classes)
    return np.asarray(sums**GATHERED)
