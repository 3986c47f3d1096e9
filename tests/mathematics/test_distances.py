"""Distances of models by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from fedwinnow.mathematics.distances import model_distance, nearness
from fedwinnow.mathematics.flat_model import FlatModel


def test_distances_by_hand():
    # Slots: weight (1 x 2), bias (1); then the scale and shift of the normalisation, its running mean and variance.
    model = FlatModel(nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1)))
    first, second = torch.zeros(7), torch.tensor([3.0, 4.0, 12.0, 0.0, 0.0, 2.0, 5.0])
    assert float(model_distance(first, second, model)) == 13.0  # sqrt(9 + 16 + 144): statistics do not count
    assert float(model_distance(first, second, model, per_tensor=True)) == 5 + 12 + 0 + 0 + 2 + 5


def test_nearness_by_hand():
    assert nearness(torch.tensor([0.0, 1.0, 2.0])).tolist() == pytest.approx([1.0, math.exp(-0.5), math.exp(-1)])
    assert nearness(torch.zeros(3)).tolist() == [1.0, 1.0, 1.0]
