"""Settings at the edge: nobody, one sample, no rounds, nothing to do; each has one defined behaviour."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedwinnow.errors import RunError, UsageError
from fedwinnow.federation.host import Task
from fedwinnow.testing import comparable, toy_data
from stages import equal, ready, run


def test_an_empty_client_is_never_asked(tmp_path):
    data = toy_data(samples=30)
    result = run(tmp_path, data=data, clients=10, partition="dirichlet:alpha=0.05,empty=keep", noise="none", rounds=4)
    sizes = result.scene.holdings.sizes
    assert (sizes == 0).any()
    assert all(row["participants"] == np.flatnonzero(sizes).tolist() for row in result.rounds)
    table = (tmp_path / "clients.csv").read_text().splitlines()
    empty = int(np.flatnonzero(sizes == 0)[0])
    assert table[1 + empty] == f"client-{empty},0,clean,0,,,0"


def test_a_method_that_asks_an_empty_client_anyway_gets_the_model_back(tmp_path):
    data = toy_data(samples=30)
    settings = {"data": data, "clients": 10, "partition": "dirichlet:alpha=0.05,empty=keep", "noise": "none"}
    player = ready(tmp_path, **settings)
    empty = int(np.flatnonzero(player.stage.sites.holdings.sizes == 0)[0])
    before = player.server.weights["weights"].clone()
    player.server.available = (empty,)
    with pytest.raises(RunError, match="no client with a positive weight"):
        player.federation.play_round(1)
    assert torch.equal(player.server.weights["weights"], before)


@pytest.mark.parametrize("norm", ["average", "local", "batch_statistics"])
def test_one_sample_and_batches_of_one_with_batch_normalisation(tmp_path, norm):
    settings = {"data": "digits:train=20", "test": 0.5, "clients": 10, "model": "lenet:norm=batch", "batch_norm": norm}
    result = run(tmp_path, **settings, batch_size=1, rounds=2, noise="none")
    assert result.summary["status"] == "finished"
    assert result.scene.holdings.sizes.tolist() == [1] * 10
    settings = {"data": "digits:train=27", "test": 0.0, "clients": 3, "model": "lenet:norm=batch", "batch_norm": norm}
    odd = run(tmp_path / "odd", **settings, batch_size=8)
    assert odd.scene.holdings.sizes.tolist() == [9, 9, 9]  # a batch of eight, a batch of one
    assert odd.summary["status"] == "finished"


@pytest.mark.parametrize(("participation", "expected"), [(1.0, 4), (0.5, 2), (0.74, 2), (0.1, 1), (1e-9, 1)])
def test_at_least_one_client_takes_part_and_at_most_all(tmp_path, participation, expected):
    player = ready(tmp_path, participation=participation)
    assert player.server.per_round == expected
    player.server.round = 1
    assert len(player.server.sample()) == expected
    assert player.server.sample(99) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("participation", 0.0, "above 0 and at most 1"),
        ("participation", 1.5, "above 0 and at most 1"),
        ("rounds", -1, "0 or more"),
        ("epochs", -1, "0 or more"),
        ("batch_size", 0, "1 or more"),
        ("clients", 0, "1 or more"),
        ("quorum", 1.1, "0 to 1"),
        ("quorum", -0.1, "0 to 1"),
        ("quorum", float("nan"), "0 to 1"),
        ("checkpoint_every", 0, "1 or more"),
        ("on_client_error", "ignore", "drop, stop"),
        ("eval_every", 0, "1 or more"),
        ("optimizer", "sgd:lr=-1", "above 0"),
        ("model", "mpl", "Did you mean 'mlp'"),
        ("method", "fedavgg", "Did you mean 'fedavg'"),
        ("backend", "threads", "processes, serial"),
    ],
)
def test_a_wrong_setting_is_refused_before_anything_is_written(tmp_path, name, value, allowed):
    with pytest.raises(UsageError, match=allowed):
        run(tmp_path, **{name: value})
    assert {path.name for path in tmp_path.iterdir()} <= {".lock"}


def test_no_rounds_measure_the_first_weights(tmp_path):
    result = run(tmp_path, rounds=0)
    summary = result.summary
    assert (summary["status"], summary["rounds"], result.rounds) == ("finished", 0, [])
    assert summary["last"] == summary["best"] == summary["last10"]
    assert 0 <= summary["last"]["accuracy"] <= 1
    assert summary["cost"]["bytes_up"] == 0
    more = run(tmp_path, rounds=2, resume=True)
    assert comparable(more.folder) == comparable(run(tmp_path / "straight", rounds=2).folder)


def test_no_epochs_leave_the_weights_alone(tmp_path):
    player = ready(tmp_path, epochs=0)
    before = {key: value.clone() for key, value in player.server.weights.items()}
    tally = player.federation.play_round(1)
    assert equal(player.server.weights, before)
    assert (tally.forward_samples, tally.backward_samples) == (0, 0)


@pytest.mark.parametrize(
    ("batch_size", "drop_last", "sizes"),
    [(8, False, [8, 8, 8, 6]), (8, True, [8, 8, 8]), (100, False, [30]), (100, True, [30]), (30, True, [30])],
)
def test_batches(tmp_path, batch_size, drop_last, sizes):
    """A client of 30 samples: a batch that would be the only one is kept, because else it would never train."""
    player = ready(tmp_path, batch_size=batch_size, drop_last=drop_last)
    client = player.federation.backend.host.client(Task(0, "train", 1, 0, {}))
    batches = list(client.batches())
    assert [len(batch) for batch in batches] == sizes
    assert len(set(torch.cat(batches).tolist())) == sum(sizes)
    assert list(client.batches(torch.zeros(0, dtype=torch.long))) == []
    assert client.predict(rows=torch.zeros(0, dtype=torch.long)).shape == (0, 3)


def test_facts_that_are_no_numbers_are_null_in_the_log(tmp_path):
    server = ready(tmp_path).server
    server.note(
        stage="warm up", rate=float("nan"), losses=torch.tensor([1.0, float("inf")]), who={3}, count=np.int64(2)
    )
    assert server.notes == {"stage": "warm up", "rate": None, "losses": [1.0, None], "who": [3], "count": 2}


class Elsewhere(torch.Tensor):
    """A tensor on a device that this machine has not got."""

    def cpu(self):
        return self.as_subclass(torch.Tensor)


def test_a_reply_leaves_the_device_on_which_it_was_made(tmp_path, monkeypatch):
    host = ready(tmp_path).federation.backend.host
    train = type(host.method).train

    def on_a_device(self, client, got):
        return {key: value.as_subclass(Elsewhere) for key, value in train(self, client, got).items()}

    monkeypatch.setattr(type(host.method), "train", on_a_device)
    answer = host.answer(Task(0, "train", 1, 0, host.model.payload()))
    assert answer.error is None
    assert {key: type(value) for key, value in answer.reply.items()} == {
        "weights": torch.Tensor,
        "samples": torch.Tensor,
    }
