"""How well wrong labels, noisy clients and noise rates were found; only a simulation knows the truth for this."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwinnow.metrics.task import Figure, Values, count, found, mean_of, number, share
from fedwinnow.randomness import Floats


def sample_detection(p_wrong: Values, wrong: Values) -> dict[str, Figure]:
    """Wrong labels found: a sample is called wrong where `p_wrong` is above one half.

    A `p_wrong` of NaN calls nothing, and the figures that need an order of the samples are then None.
    """
    p_wrong, wrong = np.asarray(p_wrong, np.float64), np.asarray(wrong, bool)
    called = p_wrong > 0.5
    ordered = not np.isnan(p_wrong).any()
    return {
        **found(count(called & wrong), count(called), count(wrong)),
        "auroc": auroc(p_wrong, wrong) if ordered else None,
        "average_precision": average_precision(p_wrong, wrong) if ordered else None,
    }


def shared_ranks(values: Values) -> Floats:
    """1 for the smallest; equal values share the mean of their places. SciPy's takes a second to import."""
    _, place, size = np.unique(np.asarray(values, np.float64), return_inverse=True, return_counts=True)
    ranks: Floats = (np.cumsum(size) - (size - 1) / 2)[place]
    return ranks


def auroc(scores: Values, positive: Values) -> Figure:
    """The share of (positive, negative) pairs in the right order; a tie is half right."""
    positive = np.asarray(positive, bool)
    positives, negatives = count(positive), count(~positive)
    excess = shared_ranks(scores)[positive].sum() - positives * (positives + 1) / 2
    return share(excess, positives * negatives)


def average_precision(scores: Values, positive: Values) -> Figure:
    """Precision at every distinct score from the top, weighted by the recall that the step adds."""
    positive = np.asarray(positive, bool)
    _, place, size = np.unique(np.asarray(scores, np.float64), return_inverse=True, return_counts=True)
    hits = np.bincount(place, weights=positive, minlength=len(size))[::-1]
    precision = np.cumsum(hits) / np.cumsum(size[::-1])
    return share((precision * hits).sum(), count(positive))


def client_detection(flagged: Collection[int], noisy: Collection[int]) -> dict[str, Any]:
    """Noisy clients found; `exact` says whether exactly the noisy clients are flagged."""
    flagged, noisy = set(flagged), set(noisy)
    scores = found(len(flagged & noisy), len(flagged), len(noisy))
    return {"precision": scores["precision"], "recall": scores["recall"], "exact": flagged == noisy}


def repeated_detection(flagged: NDArray[np.bool_], noisy: Collection[int]) -> dict[str, Figure]:
    """Noisy clients found by many fits (fits x clients): mean recall and precision, and the matching ratio.

    The matching ratio is the share of fits that flag exactly the noisy clients. A fit that flags nobody has no
    precision and is left out of its mean.
    """
    true = np.zeros(flagged.shape[1], bool)
    true[list(noisy)] = True
    hits, called = (flagged & true).sum(1), flagged.sum(1)
    right = (flagged == true).all(1)
    precision = hits[called > 0] / called[called > 0]
    return {
        "recall": share(float(hits.sum()), len(flagged) * count(true)),
        "precision": share(float(precision.sum()), len(precision)),
        "matching_ratio": share(count(right), len(flagged)),
    }


def rate_errors(estimated: Values, realised: Values) -> dict[str, Figure]:
    """Noise rates per client against the true ones; a client without an estimate or a rate (NaN) is left out."""
    estimated, realised = np.asarray(estimated, np.float64), np.asarray(realised, np.float64)
    known = np.isfinite(estimated) & np.isfinite(realised)
    estimated, realised = estimated[known], realised[known]
    error = estimated - realised
    return {
        "pearson": pearson(estimated, realised),
        "mae": share(np.abs(error).sum(), len(error)),
        "mse": share(np.square(error).sum(), len(error)),
    }


def pearson(first: Floats, second: Floats) -> Figure:
    """The correlation; undefined for fewer than two values and where one side does not vary."""
    if len(first) < 2 or not (varies(first) and varies(second)):
        return None
    first, second = first - first.mean(), second - second.mean()
    return number(float(np.clip(first @ second / np.sqrt((first @ first) * (second @ second)), -1, 1)))


def varies(values: Floats) -> bool:
    """Whether the values differ by more than rounding."""
    return bool(np.ptp(values) > 1e-12 * max(1.0, float(np.abs(values).max())))


def relabelling(given: Values, after: Values, true: Values) -> dict[str, Any]:
    """How good a change of labels was.

    `correct` is the share of changed labels that are now true, `spoiled` the share that had been true before;
    `accuracy_before` and `accuracy_after` are the shares of all labels that are true.
    """
    given, after, true = np.asarray(given), np.asarray(after), np.asarray(true)
    changed = given != after
    changes = count(changed)
    return {
        "count": changes,
        "correct": share(count(changed & (after == true)), changes),
        "spoiled": share(count(changed & (given == true)), changes),
        "accuracy_before": share(count(given == true), len(true)),
        "accuracy_after": share(count(after == true), len(true)),
    }


def selection(selected: Sequence[Values], wrong: Sequence[Values]) -> dict[str, Any]:
    """How clean and how complete the selected samples are: one mask of each kind per client of the round.

    A positive is a right label, so these are label precision and label recall. Each figure is the mean over the clients
    that have it, and `clients` holds the figures of every client.
    """
    clients = []
    for chosen, bad in zip(selected, wrong, strict=True):
        chosen, right = np.asarray(chosen, bool), ~np.asarray(bad, bool)
        hits = count(chosen & right)
        clients.append(found(hits, count(chosen), count(right), "f_score"))
    names = ("precision", "recall", "f_score")
    return {**{name: mean_of(client[name] for client in clients) for name in names}, "clients": clients}


def identification_accuracy(selected: Sequence[Values], wrong: Sequence[Values]) -> list[Figure]:
    """Per client, the share of samples that are selected and right, or not selected and wrong."""
    pairs = zip(selected, wrong, strict=True)
    return [share(count(np.asarray(one, bool) != np.asarray(bad, bool)), len(bad)) for one, bad in pairs]


def quality_errors(quality: Values, realised: Values) -> dict[str, Figure]:
    """Estimated data quality per client against 1 minus the realised noise rate; a NaN on either side is left out.

    A negative correlation means that the ranking is backwards: good clients are taken for bad ones.
    """
    errors = rate_errors(quality, 1 - np.asarray(realised, np.float64))
    return {name: errors[name] for name in ("pearson", "mse")}
