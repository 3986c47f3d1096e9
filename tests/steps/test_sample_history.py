"""The last records of each sample, by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, strategies

from by_hand import one_client
from fedwinnow.steps.site_labels import History, uncertainty

EVERYTHING = torch.arange(3)


@pytest.fixture
def client():
    return one_client([[0.0, 0.0]] * 3, [0, 1, 1])


def test_the_mean_of_what_is_there(client):
    history = History(client, "said", 2, 2)
    history.add(torch.tensor([0, 1]), torch.tensor([[1.0, 0.0], [0.5, 0.5]]))
    history.add(torch.tensor([0]), torch.tensor([[0.0, 1.0]]))
    assert history.mean().tolist() == [[0.5, 0.5], [0.5, 0.5], [0.0, 0.0]]
    assert history.mean(whole=True).tolist() == [[0.5, 0.5], [0.25, 0.25], [0.0, 0.0]]
    assert history.full.tolist() == [True, False, False]


def test_the_oldest_makes_room(client):
    history = History(client, "losses", 2)
    for value in (1.0, 2.0, 4.0):
        history.add(EVERYTHING, torch.full((3,), value))
    assert history.mean().tolist() == [3.0] * 3


def test_the_site_remembers_it(client):
    History(client, "losses", 2).add(EVERYTHING, torch.tensor([1.0, 2.0, 3.0]))
    again = History(client, "losses", 2)
    again.add(torch.tensor([0]), torch.tensor([5.0]))
    assert again.mean().tolist() == [3.0, 2.0, 3.0]
    assert client.state["losses.seen"].tolist() == [2, 1, 1]


def test_frequencies_of_classes(client):
    history = History(client, "labels", 4, dtype=torch.int64)
    for said in ([1, 2, 0], [1, 1, 0]):
        history.add(EVERYTHING, torch.tensor(said))
    assert history.frequencies(EVERYTHING, 3).tolist() == [[0, 1, 0], [0, 0.5, 0.5], [1, 0, 0]]
    # places that are still empty taken for class 0
    assert history.frequencies(torch.tensor([1]), 3, whole=True).tolist() == [[0.5, 0.25, 0.25]]


def test_uncertainty_by_hand():
    found = uncertainty(torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [1 / 3, 1 / 3, 1 / 3]]))
    assert found.tolist() == pytest.approx([0.0, math.log(2) / math.log(3), 1.0])


@given(strategies.lists(strategies.lists(strategies.integers(0, 2), min_size=3, max_size=3), max_size=12))
def test_it_is_what_a_list_would_keep(said):
    site = one_client([[0.0, 0.0]] * 3, [0, 1, 1])
    history = History(site, "labels", 4, dtype=torch.int64)
    for record in said:
        history.add(EVERYTHING, torch.tensor(record))
    frequencies = history.frequencies(EVERYTHING, 3)
    for sample in range(3):
        last = [record[sample] for record in said[-4:]] or [0]
        assert frequencies[sample].tolist() == pytest.approx([last.count(c) / len(last) for c in range(3)])
