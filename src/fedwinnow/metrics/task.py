"""How well a model does its task on labels that are known to be right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwinnow.metrics.number_or_none import Values, count, mean_of, number, share

CLASSES_WITHOUT_TOP5 = 10  # with so few, five guesses say nothing


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
    """Whether the label is among the best classes; of equal ones the first counts as better, as in argmax."""
    own = np.take_along_axis(logits, labels[:, None], 1)
    earlier = np.arange(logits.shape[1]) < labels[:, None]
    better = (logits > own) | ((logits == own) & earlier)
    # Nothing is above NaN, so a broken model would otherwise be right everywhere.
    hit: NDArray[np.bool_] = (better.sum(1) < places) & ~np.isnan(logits).any(1)
    return hit


def mean_loss(logits: NDArray[Any], labels: NDArray[Any]) -> float | None:
    """Mean cross-entropy, or None where the model is broken or there is no sample."""
    if len(labels) == 0 or not np.isfinite(logits).all():
        return None
    shifted = logits - logits.max(1, keepdims=True)
    own = np.take_along_axis(shifted, labels[:, None], 1)[:, 0]
    return number(float(np.mean(np.log(np.exp(shifted).sum(1)) - own)))
