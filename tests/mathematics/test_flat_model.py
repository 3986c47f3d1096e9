"""A model as one vector: the module sees no difference, the vector holds everything."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedwinnow.errors import UsageError
from fedwinnow.mathematics.optimizers import Sgd
from fedwinnow.mathematics.payload import FlatModel


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 16, 5))


def images(count: int = 6) -> torch.Tensor:
    return torch.randn(count, 3, 4, 4, generator=torch.Generator().manual_seed(1))


def test_the_output_is_that_of_the_plain_module():
    plain, flat = network().eval(), FlatModel(network())
    flat.module.eval()
    torch.testing.assert_close(flat.module(images()), plain(images()))


def test_a_step_is_that_of_the_plain_module():
    plain, flat = network(), FlatModel(network())
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.5)
    step = Sgd(lr=0.1, momentum=0.5).start(flat.weights[: flat.trainable], flat.gradient)
    for _ in range(3):
        optimizer.zero_grad()
        plain(images()).pow(2).mean().backward()
        optimizer.step()
        flat.gradient.zero_()
        flat.module(images()).pow(2).mean().backward()
        step()
    for (name, expected), got in zip(plain.state_dict().items(), flat.module.state_dict().values(), strict=True):
        torch.testing.assert_close(got, expected, msg=name)


def test_everything_is_in_the_payload_and_comes_back():
    first, second = FlatModel(network()), FlatModel(network())
    first.module(images())  # moves the running statistics and the counter
    with torch.no_grad():
        first.weights[: first.trainable].add_(1.0)
    second.load(first.payload())
    for name, value in first.module.state_dict().items():
        assert torch.equal(value, second.module.state_dict()[name]), name
    assert second.counters.tolist() == [1]


def test_names_lead_to_the_right_tensors():
    flat = FlatModel(network())
    named = flat.named(flat.payload())
    assert named.keys() == flat.module.state_dict().keys()
    for name, value in flat.module.state_dict().items():
        assert torch.equal(named[name], value), name


def test_a_payload_is_a_copy():
    flat = FlatModel(network())
    payload = flat.payload()
    flat.weights.zero_()
    assert payload["weights"].abs().sum() > 0


def test_own_statistics_stay():
    flat = FlatModel(network())
    sent = flat.payload()
    flat.own_statistics = torch.full_like(flat.statistics, 7.0)
    flat.load(sent)
    assert (flat.statistics == 7).all()
    assert torch.equal(flat.weights[: flat.trainable], sent["weights"][: flat.trainable])


def test_other_kinds_of_numbers_are_refused():
    with pytest.raises(UsageError, match="float32"):
        FlatModel(nn.Linear(2, 2).double())
