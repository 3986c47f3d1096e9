"""Other ways to find wrong labels, as functions of features, given labels and held-out probabilities.

Every score is high where a label is suspicious. Rules are from the published code of SimiFeat and cleanlab and from the
paper on AUM; the code is our own, and checked against numbers that their functions gave.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedwinnow.models.make_model import make_model
from fedwinnow.models.model import Shape

Matrix = NDArray[Any]
Scores = NDArray[np.float64]
Labels = NDArray[np.int64]
NEIGHBOURS, PASSES, SHARE = 10, 21, 0.9  # of SimiFeat
FOLDS, EPOCHS, BATCH, RATE, MOMENTUM = 5, 20, 32, 0.03, 0.9  # of a model that is trained for cleanlab's scores
SMALL = 1e-8


# --- from features alone -------------------------------------------------------------------------------------------


def cosine_distances(x: Matrix) -> Matrix:
    """1 - cosine between all rows; 1 for a row of zeros."""
    rows = x.astype(np.float64)
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    unit = np.divide(rows, length, out=np.zeros_like(rows), where=length > 0)
    return np.asarray(1 - unit @ unit.T)


def neighbour_disagreement(distance: Matrix, y: Labels, count: int = NEIGHBOURS) -> Scores:
    """The share of the nearest other samples whose label is another one."""
    others = distance + np.diag(np.full(len(y), np.inf))
    near = np.argsort(others, axis=1, kind="stable")[:, : min(count, len(y) - 1)]
    return np.asarray((y[near] != y[:, None]).mean(1))


def neighbour_votes(distance: Matrix, y: Labels, classes: int, count: int = NEIGHBOURS) -> Matrix:
    """SimiFeat's votes of the nearest samples, itself among them with an extrapolated distance; rows of length 1."""
    own = np.arange(len(y))
    others = distance.copy()
    others[own, own] = -np.inf  # itself first
    near = np.argsort(others, axis=1, kind="stable")[:, : min(count, len(y))]
    far = np.take_along_axis(distance, near, axis=1)
    far[:, 0] = 2 * far[:, 1] - far[:, 2] if near.shape[1] > 2 else 0.0
    found = np.zeros((len(y), classes))
    np.add.at(found, (own[:, None], y[near]), np.maximum(1 - far, 0))  # the opposite of a sample has no vote
    return np.asarray(found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), SMALL))


def simifeat(distance: Matrix, y: Labels, classes: int, seed: int = 0, passes: int = PASSES) -> Scores:
    """In how many of several passes over a part of the samples the vote is against the label; ties by the vote."""
    against, seen, depth = np.zeros(len(y)), np.zeros(len(y)), np.zeros(len(y))
    luck = np.random.RandomState(seed)
    for _ in range(passes):
        part = np.sort(luck.permutation(len(y))[: max(3, round(SHARE * len(y)))])
        found = neighbour_votes(distance[np.ix_(part, part)], y[part], classes)
        against[part] += found.argmax(1) != y[part]
        depth[part] += -np.log(found[np.arange(len(part)), y[part]] + SMALL)
        seen[part] += 1
    return np.asarray((against + 1) / (seen + 2) + 1e-4 * depth / np.maximum(seen, 1))


# --- from a model that is trained for it ---------------------------------------------------------------------------


def trained(
    x: Matrix, y: Labels, classes: int, model: Any, seed: int, asked: Matrix
) -> Iterator[tuple[Matrix, Matrix]]:
    """After each epoch: the logits of the training samples, and those of the samples that are asked about."""
    module = make_model(model, Shape("rows", (x.shape[1],), classes), seed)
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE, momentum=MOMENTUM)
    inputs, target, held = torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(asked)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(EPOCHS):
        module.train()
        for batch in torch.randperm(len(y), generator=generator).split(BATCH):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(module(inputs[batch]), target[batch]).backward()
            optimizer.step()
        module.eval()
        with torch.inference_mode():
            yield module(inputs).double().numpy(), module(held).double().numpy()


def held_out(x: Matrix, y: Labels, classes: int, model: Any, seed: int) -> Matrix:
    """Probabilities from five folds, each by a model that has not seen the fold."""
    found, fold = np.full((len(y), classes), 1 / classes), np.random.RandomState(seed).permutation(len(y)) % FOLDS
    for number in range(min(FOLDS, len(y))):
        rest, held = fold != number, fold == number
        if not held.any() or not rest.any():
            continue
        *_, (_, logits) = trained(x[rest], y[rest], classes, model, seed, x[held])
        found[held] = softmax(logits)
    return found


def regression(x: Matrix, y: Labels, classes: int, seed: int) -> Matrix:
    """The same from a logistic regression."""
    from sklearn.linear_model import LogisticRegression

    found, fold = np.full((len(y), classes), 1 / classes), np.random.RandomState(seed).permutation(len(y)) % FOLDS
    for number in range(min(FOLDS, len(y))):
        rest, held = fold != number, fold == number
        if not held.any() or len(np.unique(y[rest])) < 2:
            continue
        fitted = LogisticRegression(C=1.0, max_iter=100).fit(x[rest], y[rest])
        found[held] = 0.0
        found[np.ix_(held, fitted.classes_)] = fitted.predict_proba(x[held])
    return found


def softmax(logits: Matrix) -> Matrix:
    """Probabilities of logits."""
    raised = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(raised / raised.sum(1, keepdims=True))


def aum(x: Matrix, y: Labels, classes: int, model: Any, seed: int) -> Scores:
    """Minus the mean margin of the given label over the epochs of one training, without the first."""
    margins = [margin(own, y) for own, _ in trained(x, y, classes, model, seed, x[:1])]
    return np.asarray(-np.mean(margins[1:], axis=0))


def margin(logits: Matrix, y: Labels) -> Scores:
    """The logit of the given label minus the largest other."""
    others = logits.copy()
    others[np.arange(len(y)), y] = -np.inf
    return np.asarray(logits[np.arange(len(y)), y] - others.max(1))


# --- from held-out probabilities -----------------------------------------------------------------------------------


def self_confidence(p: Matrix, y: Labels) -> Scores:
    """1 - the probability of the given label."""
    return np.asarray(1 - p[np.arange(len(y)), y])


def normalised_margin(p: Matrix, y: Labels) -> Scores:
    """1 - (probability of the given label - largest other + 1) / 2."""
    return np.asarray((1 - margin(p, y)) / 2)


def confident_flags(p: Matrix, y: Labels) -> NDArray[np.bool_]:
    """Confident learning: the labels that `prune_by_noise_rate` finds."""
    classes, rows = p.shape[1], np.arange(len(y))
    counts = np.bincount(y, minlength=classes)
    limits = np.array([p[y == label, label].mean() if counts[label] else 2.0 for label in range(classes)])
    candidate = p >= limits - 1e-6
    guess = np.where(candidate.sum(1) == 1, candidate.argmax(1), p.argmax(1))
    counted = candidate.any(1)
    joint = np.zeros((classes, classes))
    np.add.at(joint, (y[counted], guess[counted]), 1)
    np.fill_diagonal(joint, np.maximum(joint.diagonal(), 1))
    joint = np.round(joint / np.maximum(joint.sum(1, keepdims=True), 1) * counts[:, None])
    flagged = np.zeros(len(y), bool)
    for given in range(classes):
        mine = np.flatnonzero(y == given)
        for other in range(classes):
            wanted = int(joint[given, other]) if other != given else 0
            if wanted:
                flagged[mine[np.argsort(p[mine, given] - p[mine, other], kind="stable")[:wanted]]] = True
    return flagged & (p[rows, y] < p.max(1) - 1e-6)


def confident_learning(p: Matrix, y: Labels) -> Scores:
    """What confident learning flags first, each part by the normalised margin."""
    return np.asarray(confident_flags(p, y) + normalised_margin(p, y))
