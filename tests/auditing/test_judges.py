"""Judges by hand, and what they keep on a site."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from fedwinnow import catalogue
from fedwinnow.auditing.judges import add, log_prior, verdict
from fedwinnow.auditing.judging_models import find_judge, parts_of, prepare_audit, train_and_judge
from fedwinnow.errors import UsageError
from fedwinnow.experiment.play import Execution
from fedwinnow.experiment.prepare import make_scene
from fedwinnow.experiment.settings import Experiment
from fedwinnow.federation.host import KEPT, Task
from fedwinnow.metrics.detection import auroc
from fedwinnow.testing import comparable, toy_data
from stages import ready

NOISE = "uniform:share=0.5,low=0.3,high=0.4"
NAMES = sorted(catalogue.entries("judges"))


def experiment(**settings):
    usual = {"data": toy_data(), "clients": 4, "noise": NOISE, "rounds": 4, "epochs": 2, "batch_size": 8}
    return Experiment(**{**usual, "participation": 1.0, "optimizer": "sgd:lr=0.1", **settings})


class Given:
    """As much of a client as a verdict looks at."""

    def __init__(self, *labels):
        self.given = torch.tensor(labels)


def test_the_score_is_the_log_odds_and_the_other_class_is_the_likeliest_besides_the_given_one():
    classes = torch.tensor([[0.7, 0.2, 0.1], [0.7, 0.1, 0.2]])
    reply = verdict(Given(0, 1), (classes, torch.tensor([0.7, 0.1]).double(), torch.tensor([0.3, 0.9]).double()))
    assert reply["score"].tolist() == pytest.approx([math.log(3 / 7), math.log(9)])
    assert reply["other"].tolist() == [1, 0]


def test_samples_of_which_a_model_is_sure_keep_their_order():
    right = torch.tensor([1e-30, 1e-40, 0.0], dtype=torch.float64)
    reply = verdict(Given(0, 0, 0), (torch.zeros(3, 2), right, torch.ones(3, dtype=torch.float64)))
    assert reply["score"].diff().gt(0).all()


def test_the_prior_takes_half_a_sample_for_a_class_that_a_site_has_not_seen():
    found = log_prior(torch.tensor([3, 0, 0])).exp()
    assert found.tolist() == pytest.approx([0.75, 0.125, 0.125])


def test_the_mean_over_rounds_is_a_mean():
    kept = {}
    for share in (0.2, 0.4, 0.9):
        add(kept, (torch.full((1, 2), share), torch.tensor([share]).double(), torch.tensor([1 - share]).double()))
    assert float(kept["right"]) == pytest.approx(0.5)
    assert float(kept["visits"]) == 3


@pytest.mark.parametrize("name", NAMES)
def test_every_judge_finds_wrong_labels(name, tmp_path):
    judge = find_judge(name)
    stage = prepare_audit(experiment(), judge)
    found = train_and_judge(stage, tmp_path, judge, Execution())
    assert auroc(found.score, stage.scene.wrong) > 0.85
    assert (found.other != stage.scene.given).all()


@pytest.mark.parametrize("method", ["fedcorr", "fednoro", "fedrn"])
def test_any_method_can_be_the_judge(method, tmp_path):
    judge = find_judge("mean")
    stage = prepare_audit(experiment(method=method, rounds=6), judge)
    found = train_and_judge(stage, tmp_path, judge, Execution())
    assert auroc(found.score, stage.scene.wrong) > 0.7


def test_watching_changes_nothing_of_the_training(tmp_path):
    for name, judge in (("plain", ""), ("watched", "mean:of=both")):
        stage = prepare_audit(experiment(), find_judge("mean"))
        from fedwinnow.experiment.play import play_stage
        from fedwinnow.experiment.run_folder import RunFolder

        place = RunFolder(tmp_path / name)
        with place.locked():
            play_stage(stage, place, Execution(judge=judge))
    plain, watched = comparable(tmp_path / "plain"), comparable(tmp_path / "watched")
    for name in ("rounds.jsonl", "summary.json"):
        for found in (plain, watched):
            rows = found[name] if isinstance(found[name], list) else [found[name]["cost"]]
            for row in rows:
                row.pop("forward_samples")  # watching costs forward passes, and says so
    assert plain["rounds.jsonl"] == watched["rounds.jsonl"]
    assert plain["summary.json"] == watched["summary.json"]


def test_what_a_judge_keeps_never_leaves_the_site_and_no_method_sees_it(tmp_path):
    player = ready(tmp_path, method="fedavg")
    host = player.federation.backend.host
    host.judge = find_judge("mean:skip=0")
    answer = host.answer(Task(0, "train", 1, 0, dict(player.server.weights)))
    assert set(answer.reply) <= {"weights", "counters", "samples"}
    assert any(key.startswith(KEPT) for key in host.memory.read(answer.memory))
    client = host.client(Task(0, "train", 2, 0, dict(player.server.weights), answer.memory))
    assert client.state == {}
    assert "classes" in client.kept


def test_halves_judge_the_sites_of_each_other():
    stage = prepare_audit(experiment(), find_judge("halves"))
    for part in parts_of(stage, find_judge("halves")):
        trained = {site for site, size in enumerate(part.stage.sites.holdings.sizes) if size}
        assert trained.isdisjoint(part.sites)
        assert trained | set(part.sites) == {0, 1, 2, 3}
        assert set(stage.scene.holdings.client[part.judged]) == set(part.sites)


def test_no_model_has_seen_the_labels_that_it_judges():
    stage = prepare_audit(experiment(), find_judge("mean"))
    parts = parts_of(stage, find_judge("mean"))
    assert len(parts) == 3
    assert (np.sum([part.judged for part in parts], 0) == 1).all()  # every label is judged once
    for part in parts:
        trained = np.zeros(len(stage.scene.given), bool)
        trained[part.stage.places] = True
        assert (trained == ~part.judged).all()
        assert (part.stage.sites.holdings.rows == stage.scene.holdings.rows[trained]).all()


def test_what_is_believed_of_a_label_does_not_depend_on_it(tmp_path):
    """Of two scenes that differ in one label, the opinion about this label is the same to the last bit."""
    judge, believed = find_judge("mean"), []
    scene = make_scene(experiment())
    for label in (0, 1):
        given = scene.given.copy()
        given[7] = label
        stage = prepare_audit(experiment(), judge, dataclasses.replace(scene, given=given))
        believed.append(train_and_judge(stage, tmp_path / str(label), judge, Execution()).classes)
    assert (believed[0][7] == believed[1][7]).all()
    assert (believed[0] != believed[1]).any()


def test_one_site_has_no_halves():
    stage = prepare_audit(experiment(clients=1), find_judge("halves"))
    with pytest.raises(UsageError, match="needs two sites or more; there is 1"):
        parts_of(stage, find_judge("halves"))


@pytest.mark.parametrize(("method", "reason"), [("centralised", "pools the data"), ("oracle", "gets the true labels")])
def test_methods_that_cannot_judge_are_refused(method, reason):
    with pytest.raises(UsageError, match=reason):
        prepare_audit(experiment(method=method), find_judge("mean"))


def test_the_prior_changes_plain_cross_entropy_only():
    assert prepare_audit(experiment(), find_judge("mean")).method.loss == "logit_adjustment"
    assert prepare_audit(experiment(), find_judge("mean:prior=false")).method.loss == "cross_entropy"
    assert prepare_audit(experiment(method="gce"), find_judge("mean")).method.loss.startswith("gce")
