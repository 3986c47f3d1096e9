"""Watchers: what they are told, that they change nothing, and how they end a run."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedwinnow
import stages
from fedwinnow import Stop, Watcher
from fedwinnow.experiment.run_folder import RunFolder
from fedwinnow.experiment.trackers.tracker import Tracker
from fedwinnow.testing import comparable, toy_data

MORE = {"rounds": 4, "noise": "constant:rate=0.3"}


class Scores(Watcher):
    """Measures the model on the test part, as the run does."""

    def __init__(self):
        self.found, self.said = [], []

    def round(self, row, model):
        test = fedwinnow.Scene.make(toy_data(), seed=0).dataset.test
        x = torch.from_numpy(test.features.take(np.arange(len(test))))
        right = (model(x).argmax(1).numpy() == test.labels).mean()
        self.found.append(float(right))
        self.said.append(row["accuracy"])


class Rude(Watcher):
    """Does to the model and to the random numbers what it should not."""

    def round(self, row, model):
        model.train()
        model.requires_grad_(True)
        model(torch.randn(5, *model.form.sample_shape)).sum().backward()
        with torch.no_grad():
            for value in model.parameters():
                value.mul_(0)
        torch.manual_seed(1)
        np.random.seed(1)  # noqa: NPY002
        row.clear()


class After(Watcher):
    """Ends the run after a round."""

    def __init__(self, number, how="return"):
        self.number, self.how, self.summary = number, how, None

    def round(self, row):
        if row["round"] != self.number:
            return None
        if self.how == "raise":
            raise Stop("good enough")
        return Stop if self.how == "class" else Stop("good enough")

    def finished(self, summary):
        self.summary = summary


@pytest.mark.parametrize("method", ["fedavg", "coteaching:steady=0.7"])
def test_a_watcher_sees_the_model_that_is_measured(tmp_path, method):
    watcher = Scores()
    stages.run(tmp_path, method=method, watchers=(watcher,), **MORE)
    assert len(watcher.found) == 4
    assert watcher.found == pytest.approx(watcher.said)


def test_nothing_that_a_watcher_does_reaches_the_run(tmp_path):
    quiet = stages.run(tmp_path / "a", model="mlp", **MORE)
    rude = stages.run(tmp_path / "b", model="mlp", watchers=(Rude(), Rude()), **MORE)
    assert comparable(rude.folder) == comparable(quiet.folder)


def test_where_every_site_has_its_own_model_there_is_none(tmp_path):
    seen = []

    class Look(Watcher):
        def round(self, row, model):
            seen.append(model)

    stages.run(tmp_path, method="local", watchers=(Look(),), **MORE)
    assert seen == [None] * 4


def test_what_takes_anything_is_given_the_model(tmp_path):
    seen = []

    class Look(Watcher):
        def round(self, *told):
            seen.append(len(told))

    class Old(Tracker):
        def open(self, config, done):
            seen.append("open")

        def log(self, numbers, step):
            seen.append(step)

        def close(self, numbers, status):
            seen.append(status)

    stages.run(tmp_path, watchers=(Look(), Old(tmp_path), Watcher()), **MORE | {"rounds": 1})
    assert seen == ["open", 2, 1, "finished"]


@pytest.mark.parametrize("how", ["return", "raise", "class"])
def test_a_watcher_ends_the_run(tmp_path, how):
    watcher, other = After(2, how), Scores()
    result = stages.run(tmp_path / "a", watchers=(watcher, other), checkpoint_every=3, **MORE)
    why = "" if how == "class" else "good enough"
    assert result.summary["stopped_early"] == watcher.summary["stopped_early"] == {"of": 4, "why": why}
    assert len(result.rounds) == result.summary["rounds"] == len(other.found) == 2
    assert "stopped early after 2 of 4 rounds" in repr(result)
    assert result.predict(np.zeros((1, 2))).shape == (1,)


@pytest.mark.parametrize("method", ["fedavg", "fedavg:steady=0.8", "fedcorr"])
def test_a_run_that_was_ended_goes_on_as_if_it_had_not(tmp_path, method):
    early = stages.run(tmp_path / "a", method=method, watchers=(After(2),), **MORE)
    assert early.summary["stopped_early"]["of"] == 4
    again = stages.run(tmp_path / "a", method=method, resume=True, **MORE)
    assert "stopped_early" not in again.summary
    straight = stages.run(tmp_path / "b", method=method, **MORE)
    assert comparable(again.folder) == comparable(straight.folder)


def test_the_model_of_an_ended_run_is_the_one_that_was_tested(tmp_path):
    """With `steady` that is the average, also in the file."""
    early = stages.run(tmp_path / "a", method="fedavg:steady=0.8", watchers=(After(2),), **MORE)
    short = stages.run(tmp_path / "b", method="fedavg:steady=0.8", **MORE | {"rounds": 2})
    files = [RunFolder(one.folder).path / "state.safetensors" for one in (early, short)]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_asked_again_an_ended_run_is_given_back(tmp_path):
    stages.run(tmp_path, watchers=(After(2),), **MORE)
    watcher = After(2)
    assert stages.run(tmp_path, watchers=(watcher,), **MORE).summary["stopped_early"]["of"] == 4
    assert watcher.summary is None  # nothing was played


def test_to_stop_after_the_last_round_is_no_early_end(tmp_path):
    assert "stopped_early" not in stages.run(tmp_path, watchers=(After(4),), **MORE).summary
