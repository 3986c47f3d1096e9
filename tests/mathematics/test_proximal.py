"""The distance from the model that was sent, by hand."""

from __future__ import annotations

import pytest
import torch

from by_hand import identity, one_client
from fedwinnow.mathematics.payload import FlatModel
from fedwinnow.mathematics.proximal import distance_to
from fedwinnow.models.make_model import make_model
from fedwinnow.models.model import Shape


@pytest.mark.parametrize(("squared", "value", "slope"), [(True, 25.0, [6.0, 8.0]), (False, 5.0, [0.6, 0.8])])
def test_value_and_slope(squared, value, slope):
    # two weights were moved by 3 and 4: 9 + 16 = 25, slope 2 d or d / 5
    client = one_client([[0.0, 0.0]], [0])
    client.model.load(identity())
    sent = identity()["weights"]
    client.model.weights[:2] += torch.tensor([3.0, 4.0])
    client.model.gradient.zero_()
    distance = distance_to(sent, client.model, squared=squared)
    distance.backward()
    assert distance.item() == pytest.approx(value)
    assert client.model.gradient[:2].tolist() == pytest.approx(slope)


@pytest.mark.parametrize("squared", [True, False])
def test_at_the_start_there_is_no_slope(squared):
    client = one_client([[0.0, 0.0]], [0])
    client.model.load(identity())
    client.model.gradient.zero_()
    distance_to(identity()["weights"], client.model, squared=squared).backward()
    assert client.model.gradient.abs().max() == 0


def test_convolutions_are_compared_in_their_own_layout_and_buffers_do_not_count():
    model = FlatModel(make_model("lenet:norm=batch", Shape("images", (8, 8, 1), 3)))
    sent = model.weights.clone()
    assert distance_to(sent, model).item() == 0
    model.statistics.add_(5.0)
    assert distance_to(sent, model).item() == 0
