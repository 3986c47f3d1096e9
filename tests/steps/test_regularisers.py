"""Entropy and the distance to a prior, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from by_hand import one_client
from fedwinnow.steps.regularisers import distance_to_prior, entropy, expected_classes

EVEN, SURE = torch.zeros(2, 2), torch.tensor([[40.0, 0.0], [40.0, 0.0]])


def test_entropy():
    assert float(entropy(EVEN)) == pytest.approx(math.log(2))
    assert float(entropy(SURE)) == pytest.approx(0.0, abs=1e-6)


def test_distance_to_the_prior():
    uniform = torch.tensor([0.5, 0.5])
    assert float(distance_to_prior(EVEN, uniform)) == pytest.approx(0.0)
    # predictions 3/4 and 1/4: KL = ln(1/2 / 3/4) / 2 + ln(1/2 / 1/4) / 2
    three_quarters = torch.tensor([[math.log(3.0), 0.0]])
    assert float(distance_to_prior(three_quarters, uniform)) == pytest.approx((math.log(2 / 3) + math.log(2)) / 2)
    # a class that is never predicted is finite, one that is never expected counts nothing
    assert math.isfinite(float(distance_to_prior(torch.tensor([[400.0, 0.0]]), uniform)))
    assert float(distance_to_prior(SURE, torch.tensor([1.0, 0.0]))) == pytest.approx(0.0, abs=1e-6)


def test_what_is_expected():
    client = one_client([[0.0, 0.0]] * 4, [0, 1, 1, 1], classes=2)
    assert expected_classes(client, "uniform").tolist() == [0.5, 0.5]
    assert expected_classes(client, "local").tolist() == [0.25, 0.75]
