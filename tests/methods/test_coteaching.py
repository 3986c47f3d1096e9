"""coteaching: two models that choose for each other, by hand, and the shared tester."""

from __future__ import annotations

import math
from typing import ClassVar

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from by_hand import identity, one_client, one_server
from fedwinnow.errors import UsageError
from fedwinnow.mathematics.payload import FlatModel
from fedwinnow.methods.coteaching import CoTeaching
from fedwinnow.models.make_model import make_model
from fedwinnow.models.model import Shape
from fedwinnow.testing import MethodTester, toy_data
from stages import run


class TestCoteaching(MethodTester):
    method: ClassVar[str] = "coteaching"

    def test_both_models_are_tested_together_and_apart(self, tmp_path):
        result = self.play(tmp_path, data=toy_data())
        assert all(len(row["each_accuracy"]) == 2 for row in result.rounds)
        assert all(0 <= row["label_precision"] <= 1 for row in result.rounds)
        alone = self.play(tmp_path / "alone", method="coteaching:answer=first")
        assert "each_accuracy" not in alone.rounds[0]
        assert [row["accuracy"] for row in alone.rounds] == [row["each_accuracy"][0] for row in result.rounds]

    def test_models_that_start_equal_are_refused(self, tmp_path):
        with pytest.raises(UsageError, match="start differently"):
            self.play(tmp_path, model=nn.Linear(2, 3))


class TestCoteachingCode(MethodTester):
    method: ClassVar[str] = "coteaching:preset=code,rate_from=estimated,disagree_from=2,answer=logits"


def normalised(sample_shape, classes):
    """A small model with batch normalisation."""
    return nn.Sequential(nn.Linear(*sample_shape, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, classes))


def test_statistics_that_stay_on_a_site_are_kept_for_each_model(tmp_path):
    folder = run(tmp_path, method="coteaching", model=normalised, batch_norm="local", rounds=2).folder
    memory = load_file(next(folder.glob("clients/000000-*.safetensors")))
    assert memory["batch_norm"].shape == memory["second.batch_norm"].shape == (8,)
    assert not torch.equal(memory["batch_norm"], memory["second.batch_norm"])


# --- by hand --------------------------------------------------------------------------------------------------------

# The logits of the first model are the rows, those of the second are the rows the other way round.
ROWS = [[2.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 3.0]]
LABELS = [0, 0, 0, 0]  # losses of the first model grow, those of the second shrink
TURNED = torch.tensor([0.0, 1.0, 1.0, 0.0, 0.0, 0.0])


def pair(**training):
    client = one_client(ROWS, LABELS, **training)
    client.spare = lambda: FlatModel(make_model("linear", Shape("rows", (2,), 2)))
    return client, identity() | {"second.weights": TURNED.clone()}


def step(weights, rows, labels, lr=0.1):
    """One step of plain SGD on the mean cross-entropy of a linear model, worked out without torch's autograd."""
    matrix, bias = weights[:4].view(2, 2), weights[4:]
    x, y = torch.tensor(rows), torch.tensor(labels)
    slope = ((x @ matrix.T + bias).softmax(1) - nn.functional.one_hot(y, 2)) / len(rows)
    return torch.cat([(matrix - lr * slope.T @ x).flatten(), bias - lr * slope.sum(0)])


def test_each_model_learns_from_what_the_other_chose():
    client, sent = pair()
    reply = CoTeaching(forget_rate=0.5, ramp=0).train(client, sent)
    # the first model chooses rows 0 and 1, the second rows 2 and 3
    assert torch.allclose(reply["weights"], step(sent["weights"], ROWS[2:], LABELS[2:]))
    assert torch.allclose(reply["second.weights"], step(sent["second.weights"], ROWS[:2], LABELS[:2]))
    assert client.notes["selected"].tolist() == [True, True, False, False]
    assert (client.forward_samples, client.backward_samples) == (8, 8)  # 2E F + 2E B


def test_nothing_is_forgotten_at_rate_zero_and_one_sample_is_always_kept():
    client, sent = pair()
    reply = CoTeaching(forget_rate=0.0).train(client, sent)
    assert torch.allclose(reply["weights"], step(sent["weights"], ROWS, LABELS))
    client, sent = pair()
    reply = CoTeaching(forget_rate=1.0, ramp=0).train(client, sent)
    assert torch.allclose(reply["weights"], step(sent["weights"], ROWS[3:], LABELS[3:]))


def test_the_share_grows_over_the_rounds():
    client, _ = pair()  # 10 rounds: T_k = 2
    client.round = 1
    assert CoTeaching().share(client, 0.4) == pytest.approx(0.2)
    assert CoTeaching(preset="code").share(client, 0.4) == 0.0
    client.round = 2
    assert CoTeaching().share(client, 0.4) == pytest.approx(0.4)
    assert CoTeaching(ramp=8).share(client, 0.4) == pytest.approx(0.1)


def test_co_teaching_plus_looks_at_disagreement_only():
    method = CoTeaching(disagree_from=3)
    client, _ = pair()
    first = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    second = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    assert method.pool(client, first, second).tolist() == [True] * 3
    client.round = 3
    assert method.pool(client, first, second).tolist() == [False, True, False]
    assert method.pool(client, first, first).tolist() == [True] * 3  # no disagreement: everything


def test_the_answer_of_two_models():
    answers = [torch.tensor([[math.log(3.0), 0.0]]), torch.tensor([[0.0, 0.0]])]  # 3/4 and 1/2
    assert CoTeaching().joined(answers).exp()[0].tolist() == pytest.approx([0.625, 0.375])
    assert CoTeaching(answer="logits").joined(answers)[0].tolist() == pytest.approx([math.log(3.0) / 2, 0.0])


def test_the_second_model_is_another_draw_and_both_are_averaged(tmp_path):
    server = one_server(tmp_path, fresh=lambda number: {"weights": TURNED * number})
    method = CoTeaching()
    method.start(server)
    first, second = method.models(server)
    assert torch.equal(first["weights"], identity()["weights"])
    assert torch.equal(second["weights"], TURNED)
    assert method.send(server, 0).keys() == {"weights", "second.weights"}
    replies = [
        (client, {"weights": torch.full((6,), value), "second.weights": -torch.full((6,), value), "samples": samples})
        for client, value, samples in ((0, 1.0, torch.tensor(1)), (1, 4.0, torch.tensor(2)))
    ]
    method.merge(server, iter(replies))
    assert server.weights["weights"].tolist() == [3.0] * 6
    assert server.weights["second.weights"].tolist() == [-3.0] * 6


def test_the_verdict_is_that_of_both_models():
    client, sent = pair()
    client.given = torch.tensor([0, 0, 1, 0])
    # by both models together each row is equally likely of either class; by the first alone the last is wrong
    verdict = CoTeaching(answer="first").verdict(client, sent)
    assert (verdict.p_wrong > 0.5).tolist() == [False, False, False, True]
    assert verdict.suggested.tolist() == [0, 0, 1, 1]
    # one loss, log 2, for all: no second component, so half of the models' own 1/2
    assert CoTeaching().verdict(client, sent).p_wrong.tolist() == pytest.approx([0.25] * 4)


def test_an_estimated_rate_comes_from_the_losses_of_both():
    client, sent = pair()
    sent["second.weights"] = identity()["weights"]
    client.given = torch.tensor([0, 0, 1, 0])
    models = CoTeaching().load_both(client, sent)
    assert CoTeaching(rate_from="estimated").rate(client, *models) == 0.25
    assert CoTeaching().rate(client, *models) == 0.2
