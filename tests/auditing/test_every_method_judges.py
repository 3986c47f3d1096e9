"""Every method that a federation of sites can train is a judge, by its models and by its own filter."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedwinnow import catalogue
from fedwinnow.auditing.judges import opinion
from fedwinnow.auditing.judging_models import find_judge, prepare_audit, train_and_judge
from fedwinnow.cli import main
from fedwinnow.experiment.play import Execution
from fedwinnow.experiment.settings import Experiment
from fedwinnow.federation.host import KEPT, Task
from fedwinnow.metrics.detection import auroc
from fedwinnow.testing import toy_data
from stages import ready

NO_JUDGES = {"centralised", "oracle"}  # one pools the data, one is told the truth
NEEDS = {"trusted_data": ("trusted", 0.3), "public_data": ("public", 0.3)}
JUDGES = sorted(set(catalogue.entries("methods")) - NO_JUDGES)


def toy_stage(method):
    needed = dict(NEEDS[need] for need in catalogue.find("methods", method).facts["needs"])
    experiment = Experiment(
        data=toy_data(),
        clients=4,
        noise="uniform:share=0.5,low=0.3,high=0.4",
        method=method,
        rounds=5,
        epochs=2,
        batch_size=10,
        participation=1.0,
        optimizer="sgd:lr=0.1",
        eval_every=100,
        **needed,
    )
    return prepare_audit(experiment, find_judge("mean"))


@pytest.mark.parametrize("method", JUDGES)
def test_every_method_finds_wrong_labels_by_its_models_and_by_its_filter(method, tmp_path):
    stage, execution = toy_stage(method), Execution(checkpoint_every=100)
    found = {
        "mean": train_and_judge(stage, tmp_path, find_judge("mean"), execution),
        "filter": train_and_judge(stage, tmp_path, find_judge("filter"), execution),
    }
    for one in found.values():
        assert np.isfinite(one.score).all()
        assert auroc(one.score, stage.scene.wrong) > 0.7
        assert (one.other != stage.scene.given).all()


def test_two_global_models_are_both_asked(tmp_path):
    player = ready(tmp_path, method="coteaching")
    player.federation.method.start(player.server)
    host, got = player.federation.backend.host, dict(player.server.weights)
    client = host.client(Task(0, "audit", 1, 0, got))
    said = []
    for prefix in ("", "second."):
        client.model.load(got, prefix)
        said.append(client.predict().double().softmax(1))
    together = opinion(host.method, client, got, prior=False)[0]
    assert torch.allclose(together.double(), (said[0] + said[1]) / 2, atol=1e-6)
    assert not torch.allclose(said[0], said[1], atol=1e-3)


def test_where_every_site_has_its_own_model_that_one_judges_before_and_after_training(tmp_path):
    player = ready(tmp_path, method="rhfl", public=0.3)
    host = player.federation.backend.host
    host.judge = find_judge("mean:skip=0,of=both,prior=false")
    answer = host.answer(Task(0, "train", 1, 0, {}))
    assert answer.error is None
    kept = host.memory.read(answer.memory)
    assert float(kept[f"{KEPT}visits"]) == 2
    before = opinion(host.method, host.client(Task(0, "audit", 1, 0, {})), {}, prior=False)[1]
    after = opinion(host.method, host.client(Task(0, "audit", 1, 0, {}, answer.memory)), {}, prior=False)[1]
    assert torch.allclose(kept[f"{KEPT}right"], (before + after) / 2)
    assert math.isfinite(float(after.sum()))
    assert not torch.allclose(before, after)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("centralised", "pools the data of all sites"),
        ("oracle", "gets the true labels"),
        ("rhfl", "add --public 0.2"),
        ("fair", "add --trusted 0.2"),
    ],
)
def test_a_method_that_lacks_something_says_what(method, said, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["audit", "--data", "digits", "--clients", "3", "--method", method, "--out", str(tmp_path / "x")])
    assert ended.value.code == 2
    assert said in " ".join(capsys.readouterr().err.split())
