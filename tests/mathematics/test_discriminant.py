"""The linear discriminant from sums, by hand and against everything in one place."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedwinnow.mathematics.discriminant import class_sums, fitted, log_likelihoods, products, width_of_rows

ROWS = torch.tensor([[2.0], [4.0], [-3.0]])
LABELS = torch.tensor([0, 0, 1])


def test_the_sums_by_hand():
    assert class_sums(ROWS, LABELS, 3).tolist() == [[2, 6], [1, -3], [0, 0]]
    assert products(ROWS).tolist() == [29]
    assert products(torch.tensor([[1.0, 2.0], [3.0, 4.0]])).tolist() == [10, 14, 20]  # xx, xy, yy


def test_the_fit_by_hand():
    # means 6 / 3 and -3 / 2; 29 / 3 - 2/3 * 4 - 1/3 * 9/4 = 6.25; half of it is added
    found = fitted(class_sums(ROWS, LABELS, 3), products(ROWS), ridge=0.5)
    first, second = 2 / 9.375, -1.5 / 9.375
    assert found.tolist() == [
        pytest.approx([-0.5 * first * 2, first]),
        pytest.approx([-0.5 * second * -1.5, second]),
        [0, 0],
    ]
    said = log_likelihoods(found, torch.tensor([[1.0]]))[0].tolist()
    assert said[:2] == pytest.approx([first - first, second * 1 - 0.12])
    # the class that nobody has shown is as likely as the others are on average
    assert np.exp(said[2]) == pytest.approx((np.exp(said[0]) + np.exp(said[1])) / 2)


def plain(rows: np.ndarray, labels: np.ndarray, classes: int, ridge: float) -> np.ndarray:
    """The same on everything in one place: log densities of normal distributions around shrunken means."""
    counts = np.array([(labels == number).sum() for number in range(classes)])
    means = np.array([rows[labels == number].sum(0) / (counts[number] + 1) for number in range(classes)])
    covariance = rows.T @ rows / len(rows)
    for count, mean in zip(counts, means, strict=True):
        covariance = covariance - count / len(rows) * np.outer(mean, mean)
    covariance += ridge * np.trace(covariance) / rows.shape[1] * np.eye(rows.shape[1])
    away = rows[:, None, :] - means[None]
    quadratic = np.einsum("ncd,de,nce->nc", away, np.linalg.inv(covariance), away)
    return np.asarray(-0.5 * quadratic)


@pytest.mark.parametrize("seed", range(3))
def test_sums_from_the_sites_give_the_discriminant_of_everything_together(seed):
    luck = np.random.RandomState(seed)
    rows, labels = luck.normal(size=(60, 5)).astype(np.float32), luck.randint(0, 3, 60)
    rows[:, 0] += labels
    sites = luck.randint(0, 4, 60)
    parts = [(torch.tensor(rows[sites == k]), torch.tensor(labels[sites == k])) for k in range(4)]
    sums = torch.stack([class_sums(x, y, 3) for x, y in parts]).sum(0)
    halved = torch.stack([products(x).double() for x, _ in parts]).sum(0)
    found = log_likelihoods(fitted(sums, halved, 1.0), torch.tensor(rows)).numpy()
    wanted = plain(rows.astype(np.float64), labels, 3, 1.0)
    assert np.abs((found - found[:, :1]) - (wanted - wanted[:, :1])).max() < 1e-4


def test_samples_that_are_all_equal_give_numbers():
    rows, labels = torch.zeros(4, 3), torch.tensor([0, 1, 0, 1])
    assert fitted(class_sums(rows, labels, 2), products(rows), 1.0).isfinite().all()


@pytest.mark.parametrize(
    ("module", "width"),
    [
        (nn.Linear(7, 2), 7),
        (nn.Sequential(nn.Flatten(), nn.Linear(9, 4), nn.ReLU(), nn.Linear(4, 2)), 9),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2)), None),
        (nn.Sequential(nn.EmbeddingBag(10, 4), nn.Linear(4, 2)), None),
        (nn.Linear(3072, 2), None),
        (nn.ReLU(), None),
    ],
)
def test_for_which_models(module, width):
    assert width_of_rows(module) == width
