"""Verdicts that are computed for all sites together are those that the sites give when they are asked one by one."""

from __future__ import annotations

import numpy as np
import pytest

import fedwinnow
from fedwinnow import catalogue
from fedwinnow.experiment.evaluation import begins_with_losses
from fedwinnow.experiment.play import Execution
from fedwinnow.federation.host import Host
from fedwinnow.federation.method import Method, Verdict
from fedwinnow.testing import toy_data
from stages import ready

SCENE = {"clients": 7, "partition": "dirichlet:alpha=1", "noise": "uniform:low=0,high=0.6", "participation": 0.6}


class Cautious(Method):
    """A program's own verdict, from that of the base."""

    name = "cautious"

    def verdict(self, client, got):
        usual = super().verdict(client, got)
        return Verdict(usual.p_wrong / 2, usual.suggested)


METHODS = ("fedavg", "coteaching", "jointopt", "fedcorr", "fednoro", "rofl", "selfie", "fedgr", "fedrn", "local")
WAYS = [*((method, "serial") for method in METHODS), ("fedavg", "processes:workers=2"), ("selfie", "processes")]


@pytest.mark.parametrize(("method", "backend"), WAYS)
@pytest.mark.filterwarnings("ignore::fedwinnow.errors.FedwinnowWarning")
def test_together_or_one_by_one(tmp_path, method, backend):
    player = ready(tmp_path, Execution(backend=backend), method=method, rounds=3, data=toy_data(samples=160), **SCENE)
    try:
        player.restore()
        for number in (1, 2, 3):
            player.one_round(number)
        evaluation, federation = player.evaluation, player.federation
        together = evaluation.verdicts(federation, *evaluation.predictions(federation))
        for one, asked in zip(together, evaluation.verdicts(federation), strict=True):
            assert np.array_equal(one, asked, equal_nan=True)
    finally:
        player.federation.backend.close()


def test_only_methods_that_need_the_usual_verdict_are_given_it():
    made = {name: type(catalogue.make("methods", name)) for name in catalogue.entries("methods")}
    without = {name for name, method in made.items() if not begins_with_losses(method)}
    assert without == {"dividemix", "feddiv", "fedfixer", "fedrn", "winnow"}


def questions(monkeypatch):
    """What hosts are asked from now on."""
    asked, answer = [], Host.answer
    monkeypatch.setattr(Host, "answer", lambda self, task: (asked.append(task.ask), answer(self, task))[1])
    return asked


def test_the_usual_verdict_needs_one_question_to_each_site(tmp_path, monkeypatch):
    asked = questions(monkeypatch)
    fedwinnow.run(data=toy_data(), clients=4, rounds=1, out=tmp_path)
    assert (asked.count("predict"), asked.count("judge")) == (4, 0)


def test_a_verdict_of_a_program_is_asked_for(tmp_path, monkeypatch):
    assert not begins_with_losses(Cautious)
    asked = questions(monkeypatch)
    own = fedwinnow.run(data=toy_data(), clients=4, rounds=1, method=Cautious, out=tmp_path / "own")
    usual = fedwinnow.run(data=toy_data(), clients=4, rounds=1, out=tmp_path / "usual")
    assert asked.count("judge") == 4
    halves = own.verdicts.p_wrong, usual.verdicts.p_wrong
    assert np.array_equal(halves[0], halves[1] / 2)


def test_a_site_that_cannot_predict_has_no_verdict(tmp_path, monkeypatch):
    predict = Method.predict

    def failing(self, client, got):
        if client.id == 2:
            raise ValueError("no power")
        return predict(self, client, got)

    failing.__module__ = Method.__module__
    monkeypatch.setattr(Method, "predict", failing)
    settings = {"data": toy_data(), "clients": 4, "rounds": 1, "on_client_error": "drop"}
    for method in ("fedavg", "selfie"):
        result = fedwinnow.run(method=method, out=tmp_path / method, **settings)
        assert "predict: ValueError: no power" in result.summary["silent"]["client-2"]
        verdicts = np.load(tmp_path / method / "verdicts.npz")
        missing = np.isnan(verdicts["p_wrong"])
        assert missing.any()
        assert np.array_equal(missing, np.isnan(verdicts["loss"]))
