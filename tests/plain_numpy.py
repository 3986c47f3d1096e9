"""The mathematics of published steps in plain NumPy, written without a look at the package's functions."""

from __future__ import annotations

from typing import Any

import numpy as np


def softmax(logits: Any) -> np.ndarray:
    powers = np.exp(np.asarray(logits, float) - np.max(logits, axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True))


def cross_entropies(logits: Any, labels: Any) -> np.ndarray:
    return np.asarray(-np.log(softmax(logits)[np.arange(len(labels)), labels]))


def double_softmax(logits: Any, labels: Any) -> np.ndarray:
    """-p_y + log Σ exp p_c: the cross-entropy of what is a probability already."""
    p = softmax(logits)
    return np.asarray(-p[np.arange(len(labels)), labels] + np.log(np.exp(p).sum(1)))


def zero_to_one(values: Any) -> np.ndarray:
    values = np.asarray(values, float)
    return np.asarray((values - values.min(0)) / (values.max(0) - values.min(0)))


class Linear:
    """A linear model, W x + b, as the flat vector that travels: W row by row, then b."""

    def __init__(self, flat: Any, classes: int, width: int) -> None:
        flat = np.asarray(flat, float)
        self.weight, self.bias = flat[: classes * width].reshape(classes, width), flat[classes * width :]

    @property
    def flat(self) -> np.ndarray:
        return np.concatenate([self.weight.flatten(), self.bias])

    def logits(self, rows: np.ndarray) -> np.ndarray:
        return np.asarray(rows @ self.weight.T + self.bias)

    def step(self, rows: np.ndarray, slope: np.ndarray, rate: float, more: Any = 0.0) -> Linear:
        """One step of gradient descent; `slope` is dL/dlogits, `more` a further gradient of the flat vector."""
        gradient = np.concatenate([(slope.T @ rows).flatten(), slope.sum(0)]) + more
        return Linear(self.flat - rate * gradient, *self.weight.shape)


class Mixture:
    """Two Gaussians on a line: means, variances and weights, the smaller mean first."""

    def __init__(self, means: Any, variances: Any, weights: Any) -> None:
        self.means, self.variances, self.weights = (np.asarray(part, float) for part in (means, variances, weights))

    @property
    def flat(self) -> np.ndarray:
        return np.concatenate([self.means, self.variances, self.weights])

    def densities(self, values: np.ndarray) -> np.ndarray:
        away = (values[:, None] - self.means) ** 2 / (2 * self.variances)
        return np.asarray(self.weights * np.exp(-away) / np.sqrt(2 * np.pi * self.variances))

    def low(self, values: np.ndarray) -> np.ndarray:
        """γ: the posterior of the component with the smaller mean."""
        found = self.densities(values)
        return np.asarray(found[:, 0] / found.sum(1))

    @classmethod
    def from_shares(cls, values: np.ndarray, low: np.ndarray, floor: float) -> Mixture:
        """The M step from γ of the low component."""
        shares = np.stack([low, 1 - low], 1)
        held = shares.sum(0)
        means = (shares * values[:, None]).sum(0) / held
        variances = (shares * (values[:, None] - means) ** 2).sum(0) / held
        return cls(means, np.maximum(variances, floor), held / len(values))

    @classmethod
    def fitted(cls, values: np.ndarray, *, tolerance: float, floor: float, steps: int = 100) -> Mixture:
        """EM from the best cut in two (two-means), until the mean log-likelihood moves by less than the tolerance."""
        ascending = np.sort(values)
        cuts = range(1, len(values))
        spread = [ascending[:cut].var() * cut + ascending[cut:].var() * (len(values) - cut) for cut in cuts]
        found = cls.from_shares(values, (values <= ascending[int(np.argmin(spread))]).astype(float), floor)
        before = -np.inf
        for _ in range(steps):
            now = np.log(found.densities(values).sum(1)).mean()
            found = cls.from_shares(values, found.low(values), floor)
            if abs(now - before) < tolerance:
                break
            before = now
        return found
