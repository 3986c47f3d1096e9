"""From log-odds to a probability that means what it says: of the labels at 0.8, about 80 % are wrong.

A self-test gives two histograms of log-odds: of labels that were made wrong on purpose, and of all others, which are a
mixture of right and wrong ones. Where wrong labels look like the planted ones, the second histogram is

    all others = share x planted + (1 - share) x right

so `share` is the largest number for which nothing on the right becomes negative, and of the labels in a bin the part
share x planted / all others is wrong. Only counts are needed, so sites can add theirs up without showing a sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedwinnow.randomness import Floats

EDGES = np.arange(-30.0, 30.25, 0.5)  # of the bins; the outermost take everything beyond
MIDDLES = (EDGES[1:] + EDGES[:-1]) / 2
# The shares of planted labels above a score at which the share of wrong labels is read off: a mean over each band, so
# that luck in one bin does not decide.
BANDS = ((0.3, 0.5), (0.5, 0.7), (0.7, 0.9))
FEWEST_PLANTED = 20  # below this a self-test says nothing


@dataclass(frozen=True, eq=False)
class Calibration:
    """A rising map from log-odds to p_wrong: straight lines between points, level outside of them."""

    scores: Floats
    shares: Floats
    measured: bool  # by a self-test; else it is a mixture's guess

    def p_wrong(self, score: Floats) -> Floats:
        """The probability that a label with this score is wrong."""
        return np.asarray(np.interp(score, self.scores, self.shares), np.float64)


def histogram(score: Floats) -> Floats:
    """How many scores lie in each bin."""
    return np.histogram(np.clip(score, EDGES[0], EDGES[-1]), EDGES)[0].astype(np.float64)


def wrong_share(planted: Floats, others: Floats) -> float:
    """The share of wrong labels among the others: how far the planted ones fit under them, read off in the upper tail.

    In the upper tail are hardly any right labels, so the two tails have the ratio that is sought; further up both are
    too thin to be compared.
    """
    above = np.cumsum(planted[::-1])[::-1] / planted.sum()
    others_above = np.cumsum(others[::-1])[::-1] / others.sum()
    ratio_above = others_above / np.maximum(above, 1e-12)
    bands = [(above >= low) & (above <= high) for low, high in BANDS]
    means = [float(ratio_above[band].mean()) for band in bands if band.any()]
    # Where all planted labels lie in one bin, no band has any: then the bin itself is all there is.
    return float(np.clip(min(means, default=float(ratio_above[above > 0][-1])), 0.0, 1.0))


def calibrate(planted: Floats, others: Floats) -> Calibration:
    """The map that two histograms give: rising, because a higher score never makes a label less suspicious."""
    expected = wrong_share(planted, others) * others.sum() * planted / planted.sum()
    # So many planted labels cannot make anybody surer than this, however well they fit (Laplace's rule of succession).
    surest = (planted.sum() + 1) / (planted.sum() + 2)
    return Calibration(MIDDLES, np.minimum(rising(expected, others), surest), measured=True)


def rising(wrong: Floats, total: Floats) -> Floats:
    """wrong / total in every bin, neighbours pooled until no bin is below the one before it."""
    blocks: list[list[float]] = []  # wrong, total, bins
    for one, every in zip(wrong.tolist(), total.tolist(), strict=True):
        blocks.append([one, every, 1])
        while len(blocks) > 1 and ratio(blocks[-2]) >= ratio(blocks[-1]):
            last = blocks.pop()
            blocks[-1] = [before + now for before, now in zip(blocks[-1], last, strict=True)]
    return np.concatenate([np.full(int(bins), ratio([one, every])) for one, every, bins in blocks])


def ratio(block: list[float]) -> float:
    """The share of a block; one that holds nothing says nothing, so it joins the block before it."""
    return min(block[0] / block[1], 1.0) if block[1] > 0 else (1.0 if block[0] > 0 else 0.0)


def by_mixture(score: Floats) -> Calibration:
    """Without a self-test: two Gaussians over the log-odds of all labels, the upper one being the wrong labels.

    Where all labels are right there are two Gaussians too, so nothing is called wrong that the model itself believes.
    """
    import torch

    from fedwinnow.parts.two_gaussians import fit_two_gaussians

    values = torch.from_numpy(np.clip(score, EDGES[0], EDGES[-1]))
    fitted = fit_two_gaussians(values, monotone=True, guard_bic=True)
    upper = 1.0 - fitted.p_low(torch.from_numpy(MIDDLES)).double().numpy()
    believed = 0.5 * (1 + np.tanh(MIDDLES / 2))
    return Calibration(MIDDLES, np.minimum(np.maximum.accumulate(np.nan_to_num(upper)), believed), measured=False)


def threshold_for(false_alarms: float, p_wrong: Floats) -> float | None:
    """The lowest p_wrong from which on no more than this share of calls is expected to be wrong; None: no call is."""
    ordered = np.sort(p_wrong[~np.isnan(p_wrong)])[::-1]
    expected = np.cumsum(1.0 - ordered) / np.arange(1, len(ordered) + 1)
    allowed = np.flatnonzero(expected <= false_alarms)
    return float(ordered[allowed[-1]]) if len(allowed) else None


def reliability(stated: Floats, wrong: Floats, total: Floats, bins: int = 5) -> list[dict[str, Any]]:
    """How p_wrong and the share of wrong labels agree, in bins of p_wrong: stated and observed shares with counts."""
    place = np.minimum((stated * bins).astype(np.int64), bins - 1)
    lines = []
    for number in range(bins):
        mine = (place == number) & (total > 0)
        count = float(total[mine].sum())
        lines.append(
            {
                "from": number / bins,
                "to": (number + 1) / bins,
                "labels": round(count),
                "stated": float((stated[mine] * total[mine]).sum() / count) if count else None,
                "observed": min(float(wrong[mine].sum() / count), 1.0) if count else None,
            }
        )
    return lines
