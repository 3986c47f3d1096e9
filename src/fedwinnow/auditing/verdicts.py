"""What a site learns: one line per sample, and the counts that its coordinator may see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwinnow.auditing.calibration import Calibration
from fedwinnow.auditing.training import Judged
from fedwinnow.randomness import Floats, Integers
from fedwinnow.scene.scene import Scene

FEWEST_OF_SITE = 10  # samples, below which a site has no label frequencies worth the name
FEWEST_OF_CLASS = 5  # samples of a class at all sites together, below which no model knows the class

REVIEW, KEEP, TOO_FEW = "review", "keep", "too few"


@dataclass(frozen=True, eq=False)
class SiteVerdict:
    """The labels of one site, the most suspicious first."""

    site: str
    class_names: tuple[str, ...]
    rows: Integers  # of the training part of the data
    ids: NDArray[Any]
    given: Integers
    suggested: Integers
    score: Floats  # the log-odds that the label is wrong
    p_wrong: Floats  # NaN where there are too few samples to judge
    decision: NDArray[np.str_]
    compared: dict[int, list[list[int]]]  # place -> places of the given class, places of the suggested class

    def __len__(self) -> int:
        return len(self.given)

    @property
    def flagged(self) -> NDArray[np.bool_]:
        """Which labels a person should look at."""
        return np.asarray(self.decision == REVIEW)

    def counts(self) -> dict[str, Any]:
        """What the coordinator is told about this site's labels: counts and an estimated rate."""
        judged = ~np.isnan(self.p_wrong)
        expected = float(self.p_wrong[judged].sum())
        return {
            "site": self.site,
            "samples": len(self),
            "judged": int(judged.sum()),
            "to_review": int(self.flagged.sum()),
            "estimated_wrong": round(expected, 1),
            "estimated_rate": round(expected / int(judged.sum()), 4) if judged.any() else None,
        }


def verdicts_of(judged: Judged, calibration: Calibration, threshold: float) -> list[SiteVerdict]:
    """Every site's own verdict; sites without samples have none."""
    scene = judged.stage.scene
    common = np.bincount(scene.given, minlength=scene.classes) >= FEWEST_OF_CLASS
    return [
        site_verdict(scene, judged, site, calibration, threshold, common)
        for site in np.flatnonzero(scene.holdings.sizes).tolist()
    ]


def site_verdict(
    scene: Scene, judged: Judged, site: int, calibration: Calibration, threshold: float, common: NDArray[np.bool_]
) -> SiteVerdict:
    """The verdict of one site; `common` says which classes are frequent enough to be judged."""
    mine = scene.holdings.of(site)
    score, given, other = judged.score[mine], scene.given[mine], judged.other[mine]
    enough = common[given] & (len(given) >= FEWEST_OF_SITE)
    p_wrong = np.where(enough, calibration.p_wrong(score), np.nan)
    flagged = enough & (np.nan_to_num(p_wrong) >= threshold)
    order = np.lexsort((-score, ~enough))
    place_of = np.empty(len(order), np.int64)
    place_of[order] = np.arange(len(order))
    worst, near = judged.compared[site]
    compared = {
        int(place_of[sample]): [[int(place_of[one]) for one in side if one >= 0] for side in sides]
        for sample, sides in zip(worst.tolist(), near.tolist(), strict=True)
    }
    rows = scene.holdings.rows[mine]
    decision = np.where(flagged, REVIEW, np.where(enough, KEEP, TOO_FEW))
    return SiteVerdict(
        site=scene.site_names[site],
        class_names=scene.data.class_names,
        rows=rows[order],
        ids=scene.dataset.train.ids[rows][order],
        given=given[order],
        suggested=np.where(flagged, other, given)[order],
        score=score[order],
        p_wrong=p_wrong[order],
        decision=decision[order],
        compared=compared,
    )
