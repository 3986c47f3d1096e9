"""Trusted and public samples: where they come from, who sees them, and what a run without them is told."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from fedwinnow.cli import dispatch, main
from fedwinnow.errors import DataError, StaleError, UsageError
from fedwinnow.experiment.play import Watcher
from fedwinnow.experiment.prepare import prepare
from fedwinnow.experiment.settings import Experiment
from fedwinnow.experiment.trusted_and_public import drawn, measuring_rows
from fedwinnow.federation.host import Task
from fedwinnow.federation.method import Method
from fedwinnow.testing import comparable, toy_data
from stages import TINY, ready, run

TEST = 60  # samples of the toy data's test part


def stage_of(data=None, **settings):
    return prepare(Experiment(data=data or toy_data(), **TINY | settings))


def rows_of(features) -> set[bytes]:
    return set(map(bytes, features.take(np.arange(len(features)))))


# --- where they come from -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trusted", "public", "counts"),
    [
        (0.25, None, (15, 0, 45)),
        (7, None, (7, 0, 53)),
        (0, 0.5, (0, 30, 30)),
        (0.25, "0.2", (15, 9, 36)),
        (1, 1, (1, 1, 58)),
    ],
)
def test_every_sample_of_the_test_part_is_in_one_place(trusted, public, counts):
    data = toy_data()
    stage = stage_of(data, trusted=trusted, public=public, noise="constant:rate=0.5")
    pieces = [stage.aside.trusted, stage.aside.public, stage.parts["test"]]
    assert tuple(0 if piece is None else len(piece) for piece in pieces) == counts
    rows = [rows_of(piece) for piece in pieces if piece is not None]
    assert set.union(*rows) == rows_of(data.test.features)
    assert sum(map(len, rows)) == TEST
    held = rows_of(stage.sites.features)
    assert not held & set.union(*rows)


def test_labels_of_trusted_samples_are_the_true_ones():
    data = toy_data()
    wrong = (data.test.labels + 1) % 3
    data = dataclasses.replace(data, test=dataclasses.replace(data.test, labels=wrong, true=data.test.labels))
    stage = stage_of(data, trusted=0.5)
    truth = dict(zip(map(bytes, data.test.features.array), data.test.true, strict=True))
    assert [truth[bytes(row)] for row in stage.aside.trusted.array] == stage.aside.trusted_labels.tolist()
    assert stage.aside.facts["trusted"] == {"samples": 30, "labels": "true"}


def test_labels_of_which_nobody_knows_whether_they_are_right_are_called_given():
    stage = stage_of(dataclasses.replace(toy_data(), labels_trusted=False), trusted=0.5)
    assert stage.aside.facts["trusted"]["labels"] == "given"


def test_the_scene_is_the_same_with_and_without_them():
    plain, both = stage_of(), stage_of(trusted=0.3, public=5)
    assert plain.scene.hash == both.scene.hash
    assert np.array_equal(plain.sites.holdings.rows, both.sites.holdings.rows)


def test_the_same_seed_takes_the_same_ones_and_another_seed_others():
    first, again, other = stage_of(trusted=0.5), stage_of(trusted=0.5), stage_of(trusted=0.5, seed=1)
    assert rows_of(first.aside.trusted) == rows_of(again.aside.trusted)
    assert rows_of(first.aside.trusted) != rows_of(other.aside.trusted)


def test_public_samples_may_come_from_other_data(tmp_path):
    np.savez(tmp_path / "other.npz", x=np.random.RandomState(0).rand(8, 2).astype(np.float32), y=np.arange(8) % 2)
    stage = stage_of(public=f"npz:path={tmp_path}/other.npz")
    assert len(stage.aside.public) == 8
    assert len(stage.parts["test"]) == TEST
    assert stage.aside.facts["public"]["samples"] == 8
    assert "other.npz" in stage.aside.facts["public"]["source"]


# --- what a user may get wrong --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"trusted": 1.5}, "trusted=1.5 was given; allowed"),
        ({"trusted": -0.1}, "trusted=-0.1 was given; allowed"),
        ({"trusted": float("nan")}, "trusted=nan was given; allowed"),
        ({"public": "-3"}, "public=-3 was given; allowed"),
        ({"public": "inf"}, "public=inf was given"),
        ({"trusted": 60}, "60 of 60 test samples; allowed: at least one"),
        ({"trusted": 0.001}, "0 of 60 test samples"),
        ({"trusted": 0.5, "public": 30}, "30 of 30 test samples"),
        ({"public": "no-such-data"}, "no-such-data"),
        ({"public": "digits"}, r"images of the shape \(8, 8, 1\)"),
    ],
)
def test_what_cannot_be_set_aside(settings, message):
    with pytest.raises((UsageError, DataError), match=message):
        stage_of(**settings)


def test_without_a_test_part_there_is_nothing_to_take():
    data = dataclasses.replace(toy_data(), test=None)
    with pytest.raises(UsageError, match="there is none; add --test"):
        stage_of(data, test=0, trusted=0.2)


def test_the_data_of_the_run_itself_is_not_public():
    with pytest.raises(UsageError, match="test part included; give a share"):
        prepare(Experiment(data="digits:train=100", public="digits:train=200", **TINY))


# --- who sees them --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Needy(Method):
    """Looks at everything it is handed."""

    name: ClassVar[str] = "needy"
    needs: ClassVar[tuple[str, ...]] = ("trusted_data", "public_data")
    exposes: ClassVar[dict[str, str]] = {**Method.exposes, "public": "client"}

    def merge(self, server, replies):
        super().merge(server, replies)
        bench = server.trusted
        bench.model.load(server.weights)
        bench.fit(lambda rows, x, y: self.criterion.mean(bench.model.module(x), y, bench.class_counts), epochs=1)
        server.weights = bench.model.payload()
        server.note(trusted_loss=float(bench.predict().logsumexp(1).mean()))

    def train(self, client, got):
        reply = super().train(client, got)
        client.public.fit(
            lambda rows, x, y: (client.model.module(x).log_softmax(1) * y).sum(1).mean(),
            labels=torch.ones(len(client.public), client.classes),
            epochs=1,
        )
        return reply | {"public": client.public.predict().mean(0)}


NEEDY = {"method": Needy(), "trusted": 0.2, "public": 10}


def test_the_flag_to_add_is_named():
    with pytest.raises(UsageError, match=r"add --trusted 0\.2"):
        stage_of(method=Needy(), public=0.1)
    with pytest.raises(UsageError, match=r"add --public 0\.2"):
        stage_of(method=Needy(), trusted=0.1)


def test_clients_have_the_public_samples_without_labels_and_the_trusted_ones_not_at_all(tmp_path):
    player = ready(tmp_path, **NEEDY)
    client = player.federation.backend.host.client(Task(0, "train", 1, 0, {}))
    assert rows_of(client.public.features) == rows_of(player.stage.aside.public)
    assert set(client.public.given.tolist()) == {-1}
    assert client.public.model is client.model
    assert not hasattr(client, "trusted")
    assert set(player.server.public.given.tolist()) == {-1}
    assert player.server.trusted.given.tolist() == player.stage.aside.trusted_labels.tolist()
    host = player.federation.backend.host
    assert not any(rows_of(part) & rows_of(player.stage.aside.trusted) for part in host.parts.values())


def test_a_run_that_asked_for_nothing_has_nothing(tmp_path):
    player = ready(tmp_path)
    assert player.server.benches == []
    assert player.federation.backend.host.client(Task(0, "train", 1, 0, {})).public is None


def test_cost_on_public_samples_is_the_clients_and_on_trusted_ones_the_servers(tmp_path):
    row = run(tmp_path, **NEEDY, rounds=1, epochs=3).rounds[0]
    assert row["forward_samples"] == 3 * 120 + 4 * (10 + 10)
    assert row["backward_samples"] == 3 * 120 + 4 * 10
    assert (row["server_forward_samples"], row["server_backward_samples"]) == (12 + 12, 12)


def test_what_was_set_aside_is_stated(tmp_path):
    summary = run(tmp_path, **NEEDY, rounds=1).summary
    expected = {"trusted": {"samples": 12, "labels": "true"}, "public": {"samples": 10, "source": "test part"}}
    assert summary["set_aside"] == expected
    assert run(tmp_path / "plain", rounds=1).summary["set_aside"] == {"trusted": None, "public": None}
    assert sum(map(sum, summary["test"]["confusion"])) == TEST - 22


# --- the promises of a run ------------------------------------------------------------------------------------------


class Dropping(nn.Module):
    """Draws random numbers while it trains, also on the server."""

    def __init__(self, sample_shape, classes):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(sample_shape[0], 16), nn.Dropout(0.5), nn.Linear(16, classes))

    def forward(self, x):
        return self.layers(x)


def test_resumed_it_is_the_same_run(tmp_path):
    class Stop(Watcher):
        def round(self, row):
            if row["round"] == 1:
                raise KeyboardInterrupt

    settings = NEEDY | {"model": Dropping}
    straight = comparable(run(tmp_path / "straight", **settings).folder)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "broken", **settings, watchers=(Stop(),))
    assert comparable(run(tmp_path / "broken", **settings, resume=True).folder) == straight


def test_a_folder_with_other_trusted_samples_is_refused(tmp_path):
    run(tmp_path, trusted=0.2, rounds=1)
    with pytest.raises(UsageError, match=r"trusted \(0.2 there, 0.3 now\)"):
        run(tmp_path, trusted=0.3, rounds=2, resume=True)


def test_public_data_that_changed_is_noticed(tmp_path):
    def save(labels):
        np.savez(tmp_path / "other.npz", x=np.ones((8, 2), np.float32), y=labels)

    settings = {"public": f"npz:path={tmp_path}/other.npz"}
    save(np.arange(8) % 2)
    run(tmp_path / "run", **settings, rounds=1)
    save(np.arange(8) % 4)
    with pytest.raises(StaleError, match=r"the values of other\.npz have changed"):
        run(tmp_path / "run", **settings, rounds=2, resume=True)


def test_the_command_line_and_the_folders_config_agree(tmp_path, capsys):
    words = "run --quiet --data digits:train=100 --model linear --clients 3 --rounds 1 --epochs 1"
    assert dispatch([*words.split(), "--trusted", "0.1", "--public", "5", "--out", str(tmp_path / "a")]) == 0
    config = str(tmp_path / "a" / "config.toml")
    assert dispatch(["run", "--quiet", "--config", config, "--out", str(tmp_path / "b")]) == 0
    assert comparable(tmp_path / "a") == comparable(tmp_path / "b")
    assert json.loads((tmp_path / "a" / "summary.json").read_text())["set_aside"]["public"]["samples"] == 5
    with pytest.raises(SystemExit) as end:
        main([*words.split(), "--trusted", "2.5", "--out", str(tmp_path / "c")])
    assert end.value.code == 2


def test_groups_stay_whole_among_trusted_public_and_measured_samples():
    groups = np.repeat(np.arange(40), 3)
    rows = np.arange(120)
    trusted, rest = drawn("trusted", 0.25, rows, 0, groups)
    public, measured = drawn("public", 30, rest, 0, groups)
    parts = [set(groups[part].tolist()) for part in (trusted, public, measured)]
    assert [len(part) for part in (trusted, public, measured)] == [30, 30, 60]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 40
    assert measuring_rows(0.25, 30, 120, 0, groups).tolist() == measured.tolist()
    with pytest.raises(UsageError, match="1 of 120 test samples cannot be taken in whole groups"):
        drawn("trusted", 1, rows, 0, groups)
