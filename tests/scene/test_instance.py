"""Instance-dependent noise: wrong where an annotator doubts, in the way it doubts."""

from __future__ import annotations

import numpy as np
import pytest

from fedwinnow.data.dataset import Dataset, Resident, Samples
from fedwinnow.errors import UsageError
from fedwinnow.scene.flips.instance import Annotated, Instance
from fedwinnow.scene.holdings import Holdings
from fedwinnow.scene.noise import Wrong
from fedwinnow.scene.scene import Scene


def blobs(samples: int = 600) -> Dataset:
    """Three classes on a line; the first two overlap, the third is far away."""
    generator = np.random.RandomState(0)
    labels = np.arange(samples) % 3
    rows = (np.array([0.0, 1.0, 8.0])[labels] + generator.normal(size=samples)).astype(np.float32)[:, None]
    return Dataset("blobs", "rows", ("a", "b", "c"), Samples(Resident(rows), labels, np.arange(samples)))


def test_samples_that_are_hard_get_the_label_they_look_like():
    noise = "uniform:share=1,low=0.2,high=0.2,flip=instance,epochs=40,lr=0.01"
    scene = Scene.make(blobs(), clients=2, noise=noise, test=0)
    assert scene.realised.tolist() == [0.2, 0.2]
    transitions = scene.transitions()
    easy = transitions[2, :2].sum() + transitions[:2, 2].sum()
    assert transitions[0, 1] + transitions[1, 0] > 5 * easy


def test_the_same_seed_gives_the_same_labels():
    noise = "uniform:share=0.5,low=0.3,high=0.4,flip=instance,epochs=2"
    scenes = [Scene.make(blobs(), clients=4, noise=noise, test=0, seed=seed) for seed in (0, 0, 1)]
    assert scenes[0].hash == scenes[1].hash != scenes[2].hash
    assert (scenes[0].realised[scenes[0].nominal == 0] == 0).all()


def test_a_client_of_one_class_falls_back_to_a_uniform_draw():
    scene = Scene.make(
        blobs(), clients=3, partition="dirichlet:alpha=0", test=0, noise="constant:rate=1,flip=instance,epochs=30"
    )
    assert scene.realised.tolist() == [1, 1, 1]


def annotated(opinion: np.ndarray) -> Annotated:
    data = blobs(len(opinion))
    holdings = Holdings.from_clients(np.zeros(len(opinion), np.int64), 1)
    return Annotated(data, holdings, data.train.labels, 0, opinion=opinion)


def test_the_draw_of_labels_by_hand():
    ground = annotated(np.array([[0.6, 0.3, 0.1], [0.0, 1.0, 0.0], [0.2, 0.2, 0.6]]))
    who = np.arange(3)
    # True labels are 0, 1, 2. Without them the weights are (0, .3, .1), (nothing: uniform) and (.2, .2, 0).
    for luck, expected in ((0.0, [1, 0, 0]), (0.7, [1, 2, 1]), (0.8, [2, 2, 1]), (0.999999, [2, 2, 1])):
        wrong = Wrong(who, np.zeros(3, np.int64), ground.true, np.full(3, luck), local=False)
        assert Instance().flip(ground, wrong).tolist() == expected


def test_doubt_decides_who_is_chosen():
    certain, doubtful = [1.0, 0.0, 0.0], [0.5, 0.5, 0.0]
    ground = annotated(np.array([certain, doubtful, certain, certain, doubtful, certain])[[0, 1, 2, 3, 4, 5]])
    luck = np.full(6, 0.5)
    keys = Instance().keys(ground, luck)
    # Samples 0 and 3 have the true class a, of which the annotator is certain: they come last.
    assert set(np.argsort(keys)[-2:].tolist()) == {0, 3}


def test_an_annotator_that_did_not_learn_is_no_annotator(monkeypatch):
    def diverged(ground, mine, *_, **__):
        return np.full((mine.stop - mine.start, ground.classes), np.nan)

    monkeypatch.setattr("fedwinnow.scene.annotators.train_and_ask", diverged)
    with pytest.raises(UsageError, match=r"annotator of client 0 did not learn.*smaller lr"):
        Scene.make(blobs(60), clients=2, noise="constant:rate=0.5,flip=instance", test=0)
