"""What a site learns: one line per sample, and the counts that its coordinator may see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwinnow.auditing.judging_models import Judged
from fedwinnow.randomness import Floats, Integers
from fedwinnow.scene.scene import Scene

FEWEST_OF_SITE = 10  # samples, below which a site has no label frequencies worth the name
FEWEST_OF_CLASS = 5  # samples of a class at all sites together, below which no model knows the class

REVIEW, KEEP, TOO_FEW = "review", "keep", "too few"

NOT_KNOWN = (
    "How many of the labels worth a look are really wrong is not known. The audit has not been checked against labels "
    "that a person has looked at, and a right label that is hard to predict looks just like a wrong one. "
    "It stays unknown until somebody looks."
)
REASON = "not known until a person has looked at the labels"


@dataclass(frozen=True, eq=False)
class SiteVerdict:
    """The labels of one site, the most suspicious first."""

    site: str
    class_names: tuple[str, ...]
    rows: Integers  # of the training part of the data
    ids: NDArray[Any]
    given: Integers
    suggested: Integers
    score: Floats  # the log-odds that the models give against the label
    p_wrong: Floats  # the same from 0 to 1; NaN where there are too few samples to judge
    decision: NDArray[np.str_]
    compared: dict[int, list[list[int]]]  # place -> places of the given class, places of the suggested class

    def __len__(self) -> int:
        return len(self.given)

    @property
    def flagged(self) -> NDArray[np.bool_]:
        """Which labels a person should look at."""
        return np.asarray(self.decision == REVIEW)

    def counts(self) -> dict[str, Any]:
        """What the coordinator is told about this site's labels; how many are wrong is None, with the reason."""
        judged = ~np.isnan(self.p_wrong)
        return {
            "site": self.site,
            "samples": len(self),
            "judged": int(judged.sum()),
            "to_review": int(self.flagged.sum()),
            "estimated_wrong": None,
            "estimated_rate": None,
            "reason": REASON if judged.any() else "too few samples to judge",
        }


def verdicts_of(judged: Judged, threshold: float) -> list[SiteVerdict]:
    """Every site's own verdict; sites without samples have none."""
    scene = judged.stage.scene
    common = np.bincount(scene.given, minlength=scene.classes) >= FEWEST_OF_CLASS
    return [
        site_verdict(scene, judged, site, threshold, common) for site in np.flatnonzero(scene.holdings.sizes).tolist()
    ]


def site_verdict(scene: Scene, judged: Judged, site: int, threshold: float, common: NDArray[np.bool_]) -> SiteVerdict:
    """The verdict of one site; `common` says which classes are frequent enough to be judged."""
    mine = scene.holdings.of(site)
    score, given, other = judged.score[mine], scene.given[mine], judged.other[mine]
    enough = common[given] & (len(given) >= FEWEST_OF_SITE)
    p_wrong = np.where(enough, judged.p_wrong[mine], np.nan)
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
