"""Tuning the last layer only, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from by_hand import identity, one_client
from fedwinnow.steps.head import tune_head


def test_one_step_by_hand():
    # logits 0, so p = 1/2: the slope of the bias is p - onehot, that of the weights is this times the input
    client = one_client([[2.0, 0.0]], [0], lr=0.5)
    client.model.load({"weights": torch.zeros(6)})
    tune_head(client, client.model, torch.tensor([0]))
    assert client.model.weights.tolist() == pytest.approx([0.5, 0, -0.5, 0, 0.25, -0.25])
    assert (client.forward_samples, client.backward_samples) == (1, 1)


def test_only_the_rows_that_are_named_and_momentum_over_the_batches():
    # two equal samples in two batches: step 1 moves the bias by 0.1 / 2, the second also by momentum
    rows = [[0.0, 0.0], [0.0, 0.0], [100.0, 100.0]]
    client = one_client(rows, [0, 0, 1], lr=0.1, momentum=0.5, batch_size=1)
    client.model.load({"weights": torch.zeros(6)})
    tune_head(client, client.model, torch.tensor([0, 1]))
    first = 0.5
    after = torch.tensor([0.05, -0.05]).softmax(0)[1].item()
    assert client.model.weights[:4].tolist() == [0, 0, 0, 0]
    assert client.model.weights[4].item() == pytest.approx(0.1 * first + 0.1 * (0.5 * first + after))
    assert (client.forward_samples, client.backward_samples) == (2, 2)


def test_the_body_stands_still():
    client = one_client([[1.0, -1.0], [0.5, 2.0], [-1.0, 1.0]], [0, 1, 1], model="mlp:hidden=4", lr=0.5)
    before = client.model.weights.clone()
    tune_head(client, client.model, torch.arange(3))
    moved = {
        slot.name for slot in client.model.slots if not torch.equal(slot.view(before), slot.view(client.model.weights))
    }
    assert moved == {"fc.weight", "fc.bias"}


def test_a_model_without_bias_in_its_head():
    client = one_client([[1.0, 0.0]], [0], lr=1.0)
    client.model.module.fc.bias = None
    client.model.load(identity())
    tune_head(client, client.model, torch.tensor([0]))
    wrong = torch.tensor([1.0, 0.0]).softmax(0)[1].item()
    assert client.model.weights[:4].tolist() == pytest.approx([1 + wrong, 0, -wrong, 1])


def test_the_runs_clip_holds_for_the_head_too():
    # the slope of the bias is (-1/2, 1/2), of the weights nothing: its length is sqrt(1/2), cut to a tenth of that
    client = one_client([[0.0, 0.0]], [0], lr=1.0, clip=math.sqrt(0.5) / 10)
    client.model.load({"weights": torch.zeros(6)})
    tune_head(client, client.model, torch.tensor([0]))
    assert client.model.weights.tolist() == pytest.approx([0, 0, 0, 0, 0.05, -0.05], rel=1e-4)


def test_a_batch_that_is_not_full_is_left_out_where_the_run_says_so():
    client = one_client([[0.0, 0.0]] * 3, [0, 0, 0], batch_size=2, drop_last=True)
    tune_head(client, client.model, torch.arange(3))
    assert (client.forward_samples, client.backward_samples) == (3, 2)
