"""MixMatch by hand."""

from __future__ import annotations

import pytest
import torch

from by_hand import identity, one_client
from fedwinnow.mathematics.losses import sharpened
from fedwinnow.mathematics.payload import FlatModel
from fedwinnow.methods.dividemix import endless, mean_prediction, mixed
from fedwinnow.models.make_model import make_model
from fedwinnow.models.model import Shape


def test_sharpening():
    # squares of 0.8 and 0.2 are 0.64 and 0.04
    assert sharpened(torch.tensor([[0.8, 0.2]]), 0.5)[0].tolist() == pytest.approx([16 / 17, 1 / 17])
    assert sharpened(torch.tensor([[0.8, 0.2]]), 1.0)[0].tolist() == pytest.approx([0.8, 0.2])


def test_the_mean_prediction_over_models_and_views():
    first, second = (FlatModel(make_model("linear", Shape("rows", (2,), 2))) for _ in range(2))
    first.load(identity())
    second.load(identity(scale=2.0))
    views = [torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 0.5]])]
    expected = torch.stack([(scale * view).softmax(1) for scale in (1.0, 2.0) for view in views]).mean(0)
    assert torch.allclose(mean_prediction([first, second], views), expected)


def test_the_larger_share_is_a_samples_own():
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        inputs, targets = mixed(torch.eye(4), torch.eye(4), 0.5, generator)
        assert torch.equal(inputs, targets)
        assert bool((inputs.diagonal() >= 0.5).all())
        assert torch.allclose(inputs.sum(1), torch.ones(4))


def test_rows_without_end():
    rows, client = torch.tensor([3, 5, 7]), one_client([[0.0, 0.0]], [0])
    following = endless(rows, client.generator)
    taken = [following(2).tolist() for _ in range(4)]
    assert all(len(set(pair)) == 2 and set(pair) <= {3, 5, 7} for pair in taken)
    assert len(following(9)) == 3  # never more than there are
    assert len(endless(rows[:0], client.generator)(2)) == 0
