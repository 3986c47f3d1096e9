"""How well a model does its task, how far training moves the clients' models, and what a model has memorised.

A figure that cannot be computed is None, never 0 and never NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = Sequence[Any] | NDArray[Any]  # anything that NumPy makes a one-dimensional array of
Figure = float | None


def number(value: float) -> Figure:
    """The value, or None where it is NaN or infinity."""
    return float(value) if math.isfinite(value) else None


def count(mask: Values) -> int:
    """How many entries are true."""
    return int(np.count_nonzero(mask))


def share(part: float, whole: float) -> Figure:
    """One number as a share of another; None where the whole is 0."""
    return number(part / whole) if whole else None


def mean_of(figures: Iterable[Figure]) -> Figure:
    """The mean of the figures that are not None."""
    defined = [figure for figure in figures if figure is not None]
    return number(float(np.mean(defined))) if defined else None


def found(hits: float, called: float, positives: float, f_score: str = "f1") -> dict[str, Figure]:
    """Precision, recall and their harmonic mean from counts.

    Where there was something to find and nothing was called, precision is None but the harmonic mean is 0, as it is
    where every call was wrong: otherwise calling nothing would beat a bad guess in every average.
    """
    return {
        "precision": share(hits, called),
        "recall": share(hits, positives),
        f_score: share(2 * hits, called + positives) if positives else None,
    }


CLASSES_WITHOUT_TOP5 = 10  # with so few classes, a hit among five guesses means little


def task_scores(predicted: Values, labels: Values, classes: int, top5: Values | None = None) -> dict[str, Any]:
    """Scores of hard predictions; `top5` says of each sample whether its class was among the best five.

    Balanced accuracy is the mean recall of the classes that the labels have. Macro F1 is the mean over the classes
    that the labels or the predictions have, as scikit-learn's default: a class that is predicted but absent counts 0.
    """
    predicted, labels = np.asarray(predicted, np.int64), np.asarray(labels, np.int64)
    confusion = np.bincount(labels * classes + predicted, minlength=classes * classes).reshape(classes, classes)
    right, present, called = confusion.diagonal(), confusion.sum(1), confusion.sum(0)
    recall = [share(hit, every) for hit, every in zip(right, present, strict=True)]
    f1 = [share(2 * hit, both) for hit, both in zip(right, present + called, strict=True)]
    return {
        "accuracy": share(int(right.sum()), len(labels)),
        "balanced_accuracy": mean_of(recall),
        "macro_f1": mean_of(f1),
        "top5": None if top5 is None else share(count(top5), len(labels)),
        "per_class_recall": recall,
        "confusion": confusion.tolist(),
    }


def of_several(every: Sequence[Values], labels: Values) -> dict[str, Any]:
    """The mean scores of several models, with their confusions added up; and the accuracy of their mean probability."""
    scores = [from_logits(logits, labels) for logits in every]
    names = ("accuracy", "balanced_accuracy", "macro_f1", "top5", "loss")
    chances = np.mean([softmax(np.asarray(logits, np.float64)) for logits in every], axis=0)
    return {
        **{name: mean_of(score[name] for score in scores) for name in names},
        "per_class_recall": [
            mean_of(recalls) for recalls in zip(*(s["per_class_recall"] for s in scores), strict=True)
        ],
        "confusion": np.sum([score["confusion"] for score in scores], axis=0).tolist(),
        "ensemble_accuracy": share(count(chances.argmax(1) == np.asarray(labels)), len(labels)),
    }


def softmax(logits: NDArray[Any]) -> NDArray[np.float64]:
    """Probabilities, row by row."""
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True))


def from_logits(logits: Values, labels: Values) -> dict[str, Any]:
    """Scores of logits (samples x classes): those of the best class, top 5 beyond ten classes, and the mean loss."""
    logits, labels = np.asarray(logits, np.float64), np.asarray(labels, np.int64)
    classes = logits.shape[1]
    top5 = among_best(logits, labels, 5) if classes > CLASSES_WITHOUT_TOP5 else None
    return {**task_scores(logits.argmax(1), labels, classes, top5), "loss": mean_loss(logits, labels)}


def among_best(logits: NDArray[Any], labels: NDArray[Any], places: int) -> NDArray[np.bool_]:
    """Whether the label is among the best classes; among equal logits the first class is the better, as in argmax."""
    own = np.take_along_axis(logits, labels[:, None], 1)
    earlier = np.arange(logits.shape[1]) < labels[:, None]
    better = (logits > own) | ((logits == own) & earlier)
    # No number is larger than NaN, so a model that gives NaN would otherwise be right everywhere.
    hit: NDArray[np.bool_] = (better.sum(1) < places) & ~np.isnan(logits).any(1)
    return hit


def mean_loss(logits: NDArray[Any], labels: NDArray[Any]) -> float | None:
    """Mean cross-entropy, or None where a logit is not finite or there is no sample."""
    if len(labels) == 0 or not np.isfinite(logits).all():
        return None
    shifted = logits - logits.max(1, keepdims=True)
    own = np.take_along_axis(shifted, labels[:, None], 1)[:, 0]
    return number(float(np.mean(np.log(np.exp(shifted).sum(1)) - own)))


def training_stability(local: Iterable[Values], start: Values) -> Figure:
    """The mean over the clients of a round of the squared distance from the global weights that they started from.

    Weights are flat vectors of trainable parameters before aggregation. If one distance is not finite, the figure is
    None.
    """
    distances = []
    for weights in local:
        step = np.subtract(weights, start, dtype=np.float64)  # both are converted piece by piece, without a copy
        # A dot product would start threads, and differ with their number.
        distances.append(number(float(np.square(step, out=step).sum())))
    return None if None in distances else mean_of(distances)


def memorisation(predicted: Values, given: Values, true: Values) -> dict[str, Figure]:
    """What the model predicts for its own training samples, without random views.

    Of the wrongly labelled ones, `memorised` is the share predicted as their wrong given label and `corrected` the
    share predicted as their true one; `clean_correct` is the share of rightly labelled samples predicted right.
    """
    predicted, given, true = np.asarray(predicted), np.asarray(given), np.asarray(true)
    wrong = given != true
    as_true = predicted == true
    wrongs = count(wrong)
    return {
        "memorised": share(count(wrong & (predicted == given)), wrongs),
        "corrected": share(count(wrong & as_true), wrongs),
        "clean_correct": share(count(~wrong & as_true), len(true) - wrongs),
    }
