"""Each site's own test part: its own rows where the data has them, else its mixture of classes."""

from __future__ import annotations

import csv
import dataclasses

import numpy as np
import pytest
import torch

from fedwinnow.data.dataset import Dataset, Resident, Samples
from fedwinnow.deployment.real_sites import real_stage
from fedwinnow.experiment.evaluation import OWN_MIXTURE, OWN_ROWS, Evaluation
from fedwinnow.experiment.settings import Experiment
from fedwinnow.testing import toy_data
from stages import played, ready, run


def lines(folder):
    with (folder / "own_test.csv").open() as stream:
        return list(csv.DictReader(stream))


def fixed_answers(monkeypatch, predicted):
    """Let the global model predict these classes for the test part."""
    logits = torch.nn.functional.one_hot(torch.tensor(predicted), 3).float()
    monkeypatch.setattr(Evaluation, "answers", lambda self, federation, part: [logits])


def test_the_mixture_of_true_labels_weighs_the_common_test_part(tmp_path, monkeypatch):
    """Site 0 has 3 + 0 + 1 samples of classes 0, 1 and 2, by their true labels, site 1 the other way round."""
    rows = np.zeros((8, 2), np.float32)
    train = Samples(Resident(rows), np.array([0, 0, 0, 2, 1, 1, 1, 0]), np.arange(8), sites=np.array(list("aaaabbbb")))
    labels = np.arange(60) % 3
    test = Samples(Resident(np.zeros((60, 2), np.float32)), labels, np.arange(60))
    data = Dataset("by hand", "rows", ("x", "y", "z"), train, test)
    predicted = np.where(labels == 0, np.where(np.arange(60) < 30, 0, 1), 2)  # recalls 1/2, 0 and 1
    fixed_answers(monkeypatch, predicted)
    result = run(tmp_path, data=data, partition="column", noise="constant:rate=0.5", rounds=0)
    first, second = lines(tmp_path)
    assert (first["site"], first["part"], second["site"]) == ("a", OWN_MIXTURE, "b")
    assert float(first["accuracy"]) == pytest.approx((3 * 0.5 + 1) / 4)
    assert float(first["balanced_accuracy"]) == pytest.approx(0.75)
    assert float(second["accuracy"]) == pytest.approx((0 + 0.5) / 4)
    assert float(second["balanced_accuracy"]) == pytest.approx(0.25)
    assert int(first["test_rows"]) == 32  # 16 / (9 / 20 + 1 / 20)
    assert result.summary["own_test"] == {
        "part": OWN_MIXTURE,
        "sites": 2,
        "sites_without_figure": 0,
        "accuracy": pytest.approx((0.625 + 0.125) / 2),
        "balanced_accuracy": pytest.approx(0.5),
        "worst_site": "b",
        "worst_accuracy": pytest.approx(0.125),
    }


def by_site(test_sites):
    """Toy data with sites in both parts."""
    data = toy_data()
    train = dataclasses.replace(data.train, sites=np.array(["north", "south"])[np.arange(120) % 2])
    return dataclasses.replace(data, train=train, test=dataclasses.replace(data.test, sites=test_sites))


def test_own_rows_where_the_test_part_has_sites_and_none_stated_for_few(tmp_path, monkeypatch):
    sites = np.array(["north"] * 40 + ["south"] * 19 + ["nobody"])
    data = by_site(sites)
    predicted = data.test.labels.copy()
    predicted[:10] = (predicted[:10] + 1) % 3
    fixed_answers(monkeypatch, predicted)
    result = run(tmp_path, data=data, partition="column", rounds=0)
    north, south = lines(tmp_path)
    assert (north["part"], north["test_rows"], float(north["accuracy"])) == (OWN_ROWS, "40", 0.75)
    assert (south["test_rows"], south["accuracy"], south["balanced_accuracy"]) == ("19", "", "")
    assert result.summary["own_test"]["sites_without_figure"] == 1
    assert result.summary["own_test"]["worst_site"] == "north"


def test_a_partition_that_ignores_the_column_ignores_it_in_the_test_part_too(tmp_path):
    run(tmp_path, data=by_site(np.array(["north", "south"])[np.arange(60) % 2]), partition="iid", clients=2, rounds=1)
    assert {line["part"] for line in lines(tmp_path)} == {OWN_MIXTURE}


def test_samples_set_aside_keep_the_sites_of_the_others(tmp_path):
    data = by_site(np.array(["north"] * 30 + ["south"] * 30))
    run(tmp_path, data=data, partition="column", rounds=1, trusted=20)
    rows = {line["site"]: int(line["test_rows"]) for line in lines(tmp_path)}
    assert sum(rows.values()) == 40
    assert set(rows) == {"north", "south"}


def test_of_a_site_with_its_own_model_that_model_counts(tmp_path):
    """By own models every site of one class does well on its own mixture, and badly on the others' classes."""
    settings = {"clients": 3, "partition": "dirichlet:alpha=0", "noise": "none", "rounds": 4, "epochs": 3}
    alone = run(tmp_path / "local", method="local", **settings)
    assert [float(line["accuracy"]) for line in lines(tmp_path / "local")] == [1.0, 1.0, 1.0]
    assert alone.summary["last"]["accuracy"] == pytest.approx(1 / 3)


def test_an_absent_site_without_a_trained_model_has_no_figure(tmp_path):
    data = toy_data()
    sites = np.array(["big"] * 115 + ["small"] * 5)
    data = dataclasses.replace(data, train=dataclasses.replace(data.train, sites=sites))
    with pytest.warns(UserWarning, match="absent"):
        run(tmp_path / "local", data=data, partition="column", method="local", least_count=10, rounds=1)
    assert [line["accuracy"] != "" for line in lines(tmp_path / "local")] == [True, False]
    with pytest.warns(UserWarning, match="absent"):
        run(tmp_path / "fedavg", data=data, partition="column", method="fedavg", least_count=10, rounds=1)
    assert all(line["accuracy"] for line in lines(tmp_path / "fedavg"))  # it could use the common model


def test_sites_of_pooled_data_are_measured_one_by_one(tmp_path):
    run(tmp_path, method="centralised", clients=5)
    assert len(lines(tmp_path)) == 5


def test_real_sites_are_not_asked(tmp_path):
    stage = real_stage(Experiment(), toy_data(), {"a": 50, "b": 60})
    evaluation = Evaluation(stage.scene, stage.labels, stage.sites.holdings, stage.places, simulated=False)
    assert evaluation.own_test(None) is None  # not even the federation is looked at


def test_without_a_test_part_nothing_is_said(tmp_path):
    data = dataclasses.replace(toy_data(), test=None)
    result = run(tmp_path, data=data, test=0)
    assert not (tmp_path / "own_test.csv").exists()
    assert "own_test" not in result.summary


def test_a_thousand_sites_cost_one_pass_of_the_model(tmp_path, monkeypatch):
    data = toy_data(samples=3000)
    federation = played(tmp_path, data=data, clients=1000, participation=0.01, rounds=1)
    player = ready(tmp_path / "other", data=data, clients=1000, participation=0.01, rounds=1)
    passes = []
    usual = federation.backend.score
    monkeypatch.setattr(federation.backend, "score", lambda *some: passes.append(some[0]) or usual(*some))
    monkeypatch.setattr(federation, "ask_all", None)  # no question to a site
    found = player.evaluation.own_test(federation)
    assert passes == ["test"]
    assert len(found.accuracy) == 1000
