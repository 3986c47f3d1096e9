"""A site trains the rows of a token table that its texts use: the same bits, and the whole model is sent."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedwinnow.data.dataset import Dataset, Resident, Samples
from fedwinnow.federation.client import Client
from fedwinnow.federation.method import Method
from fedwinnow.mathematics import token_rows
from fedwinnow.mathematics.payload import FlatModel
from fedwinnow.mathematics.token_rows import only_rows, rows_of, table_of
from stages import equal, ready

WORDS = 700


def texts(samples=120, length=9, classes=3):
    luck = np.random.default_rng(0)
    labels = np.arange(samples) % classes
    tokens = luck.integers(1, 40, (samples, length)) + 200 * labels[:, None]
    tokens[luck.random((samples, length)) < 0.2] = 0
    tokens[:, 0] = WORDS - 1
    names = tuple("abc"[:classes])
    part = Samples(Resident(tokens.astype(np.int32)), labels, np.arange(samples))
    train, test = part.subset(np.arange(90)), part.subset(np.arange(90, samples))
    return Dataset("texts", "tokens", names, train, test, vocabulary=WORDS)


class Twice(nn.Module):
    """A model of a program, with a weight before its table."""

    token_table = "table"

    def __init__(self):
        super().__init__()
        self.strength = nn.Parameter(torch.ones(7))
        self.table = nn.Embedding(WORDS, 5)
        self.last = nn.Linear(5, 3)

    def forward(self, tokens):
        return self.last(self.table(tokens).mean(1) * self.strength.mean())


def played(folder, **settings):
    """A federation after its last round."""
    player = ready(folder, **settings)
    player.federation.start()
    for number in range(1, player.server.rounds + 1):
        player.federation.play_round(number)
    return player.federation


@pytest.fixture
def used(monkeypatch):
    """How many rows each training had, where it had fewer than all."""
    found, usual = [], token_rows.only_rows

    def counted(model, table, rows):
        found.append(len(rows))
        return usual(model, table, rows)

    monkeypatch.setattr(token_rows, "only_rows", counted)
    return found


def whole_tables(monkeypatch):
    """From now on sites train whole tables."""
    monkeypatch.setattr(token_rows, "rows_of", lambda tokens, table: None)


EXACT = ["sgd:lr=0.5,momentum=0", "sgd:lr=0.5,momentum=0.9", "adam:lr=0.05", "adamw:lr=0.05,weight_decay=0"]
SETTINGS = [
    *({"optimizer": optimizer, "model": f"text:width={width}"} for optimizer in EXACT for width in (8, 5)),
    {"method": "gce"},
    {"method": "winnow", "rounds": 3},
    {"method": "logit_adjustment", "batch_size": 7},
    {"method": "local"},
    {"model": Twice},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_the_bits_are_those_of_the_whole_table(tmp_path, monkeypatch, used, settings):
    settings = {"data": texts(), "model": "text", "optimizer": "sgd:lr=0.5,momentum=0.5", "epochs": 3, **settings}
    few = played(tmp_path / "few", **settings)
    assert used
    assert max(used) <= WORDS // 2 + 64
    whole_tables(monkeypatch)
    before = len(used)
    whole = played(tmp_path / "whole", **settings)
    assert len(used) == before
    assert equal(few.server.weights, whole.server.weights)
    assert len(few.server.weights["weights"]) == whole.server.model.trainable  # what is sent is the whole table
    memories = [{k: f.memory.read(v) for k, v in f.memory.versions.items()} for f in (few, whole)]
    assert all(equal(memories[0][client], memories[1][client]) for client in memories[1])


OTHER = [
    {"optimizer": "sgd:lr=0.5,weight_decay=0.01"},  # decay moves the rows of other words, too
    {"optimizer": "adamw:lr=0.05"},
    {"clip": 1.0},  # the length of a gradient is a sum, and a sum over fewer numbers may differ in its last bit
    {"method": "fedprox"},  # compares with the whole model that was sent
    {"method": "cdr"},  # changes the step
    {"method": "coteaching"},  # chooses by two models
]


@pytest.mark.parametrize("settings", OTHER, ids=str)
def test_elsewhere_the_table_stays_whole(tmp_path, used, settings):
    played(tmp_path, data=texts(), **{"model": "text", "optimizer": "sgd:lr=0.5", **settings})
    assert not used


def test_many_tokens_are_not_worth_it_and_strange_ones_are_left_to_the_model():
    model = FlatModel(Twice())
    table = table_of(model)
    assert rows_of(torch.arange(1, 400), table) is None
    assert rows_of(torch.tensor([3, WORDS]), table) is None
    assert rows_of(torch.tensor([-1]), table) is None
    assert rows_of(torch.zeros(0, dtype=torch.int64), table) is None
    rows = rows_of(torch.tensor([[500, 3], [500, 699]]), table)
    assert {0, 3, 500, 699} <= set(rows.tolist())
    assert rows.tolist() == sorted(rows.tolist())
    assert (WORDS - len(rows)) % 64 == 0


def test_a_model_without_a_table_of_tokens_has_none():
    module = Twice()
    module.token_table = "last"
    assert table_of(FlatModel(module)).shape == (3, 5)
    assert table_of(FlatModel(nn.Linear(2, 2))) is None
    module.token_table, module.table.padding_idx = "table", 3
    assert table_of(FlatModel(module)) is None  # the padding would get another number
    module.table.padding_idx = 0
    assert table_of(FlatModel(module)) is not None
    module.norm = nn.BatchNorm1d(3)
    assert table_of(FlatModel(module)) is None  # its running statistics are part of the vector


def test_an_error_in_between_leaves_a_whole_model():
    model = FlatModel(Twice())
    table, before = table_of(model), model.weights.clone()
    rows = rows_of(torch.tensor([5, 6]), table)

    def train():
        with only_rows(model, table, rows) as numbers:
            assert model.module.table.weight.shape == (len(rows), 5)
            assert numbers[6] == rows.tolist().index(6)
            with torch.no_grad():
                model.weights.add_(1)
            raise ValueError("no power")

    with pytest.raises(ValueError, match="no power"):
        train()
    moved = before.clone()
    table.view(moved)[rows] += 1
    moved[: table.start] += 1
    moved[table.stop :] += 1
    assert torch.equal(model.weights, moved)
    assert model.module.table.weight.data_ptr() == table.view(model.weights).data_ptr()
    assert model.module.last.bias.grad.data_ptr() == model.slots[-1].view(model.gradient).data_ptr()


def test_a_site_sees_its_own_numbers_of_tokens_only_while_it_trains(tmp_path, monkeypatch):
    seen, predict, mean = [], Client.predict, Method.objective

    def objective(self, client, rows, x, y, got):
        seen.append(int(x.max()))
        return mean(self, client, rows, x, y, got)

    objective.__module__ = Method.__module__
    monkeypatch.setattr(Method, "objective", objective)
    federation = played(tmp_path, data=texts(), model="text", rounds=1)
    assert max(seen) < WORDS // 2

    def predicting(self, **more):
        seen.append(int(self.resident.max()))
        return predict(self, **more)

    monkeypatch.setattr(Client, "predict", predicting)
    dict(federation.ask_all("predict", (0,)))
    assert seen[-1] == WORDS - 1
