"""dividemix: its steps by hand, what it costs, and the shared tester."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch

from by_hand import identity, one_client, one_server
from fedwinnow.mathematics.payload import FlatModel
from fedwinnow.mathematics.two_gaussians import fit_two_gaussians
from fedwinnow.methods.dividemix import DivideMix, one_step_each
from fedwinnow.models.make_model import make_model
from fedwinnow.models.model import Shape
from fedwinnow.steps.site_labels import sample_losses
from fedwinnow.testing import MethodTester


class TestDividemix(MethodTester):
    method: ClassVar[str] = "dividemix"


class TestDividemixCode(MethodTester):
    method: ClassVar[str] = (
        "dividemix:preset=code,prior=local,loss_history=2,confidence_penalty=true,answer=first,warm_up=1"
    )


ROWS = [[2.0, 0.0], [1.9, 0.0], [0.0, 2.0], [0.0, 1.8], [2.0, 0.0], [0.0, 2.0]]
LABELS = [0, 0, 1, 1, 1, 0]  # the last two are wrong


def linear() -> FlatModel:
    return FlatModel(make_model("linear", Shape("rows", (2,), 2)))


def site(**training):
    client = one_client(ROWS, LABELS, **training)
    client.spare = linear
    client.round = 10
    return client


def both(scale: float = 2.0):
    return identity() | {"second.weights": identity(scale=scale)["weights"]}


def test_the_clean_probability_is_that_of_normalised_losses():
    client = site()
    client.model.load(identity())
    losses = sample_losses(client.predict(), client.given)
    for preset, steps in (("paper", 10), ("code", 100)):
        mixture = fit_two_gaussians(losses, steps=steps, tolerance=0.01, variance_floor=0.0005, normalise=True)
        assert torch.equal(DivideMix(preset=preset).p_clean(client, client.model, ""), mixture.p_low(losses))
    assert (DivideMix().p_clean(client, client.model, "") > 0.5).tolist() == [True] * 4 + [False] * 2


def test_earlier_losses_count_where_asked_for():
    client, method = site(), DivideMix(loss_history=2)
    client.model.load(identity())
    method.p_clean(client, client.model, "first")
    client.model.load(identity(scale=3.0))
    method.p_clean(client, client.model, "first")
    before = client.state["first_losses"].clone()
    assert torch.allclose(before[:, 0], sample_losses(torch.tensor(ROWS), client.given))
    assert torch.allclose(before[:, 1], sample_losses(3 * torch.tensor(ROWS), client.given))
    method.p_clean(client, client.model, "")  # a verdict leaves no trace
    assert torch.equal(client.state["first_losses"], before)


def test_co_refinement_and_co_guessing():
    first, second = linear(), linear()
    first.load(identity())
    second.load(identity(scale=2.0))
    x, u = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    found = DivideMix().targets(
        first, second, [x, 2 * x], [u, 2 * u], given=torch.tensor([[0, 1]]), w=torch.tensor([0.8])
    )
    own = (x.softmax(1) + (2 * x).softmax(1)) / 2
    refined = (0.8 * torch.tensor([[0.0, 1.0]]) + 0.2 * own).square()
    guess = torch.stack([(scale * u).softmax(1) for scale in (1, 2, 2, 4)]).mean(0).square()
    expected = [refined / refined.sum(), refined / refined.sum(), guess / guess.sum(), guess / guess.sum()]
    assert torch.allclose(found, torch.cat(expected), atol=1e-6)
    assert len(DivideMix().targets(first, second, [x, x], [], given=torch.tensor([[0, 1]]), w=torch.ones(1))) == 2


def test_the_loss_of_one_batch(monkeypatch):
    """L_X + lambda_u L_U + L_reg, without mixing."""
    client, method = site(), DivideMix(lambda_u=3.0, ramp=0)
    monkeypatch.setattr("fedwinnow.methods.dividemix.mixed", lambda inputs, targets, *_: (inputs, targets))
    model, other = linear(), linear()
    model.load(identity())
    other.load(identity(scale=2.0))
    w = torch.tensor([0.9, 0.9, 0.9, 0.9, 0.1, 0.1])
    before = model.weights.clone()
    method.learn(client, model, other, w, one_step_each())
    leaf = before.clone().requires_grad_()
    x, u = torch.tensor(ROWS[:4]), torch.tensor(ROWS[4:])
    given = torch.nn.functional.one_hot(torch.tensor(LABELS[:4]), 2)
    reference = linear()
    reference.load(identity())
    targets = method.targets(reference, other, [x, x], [u, u], given=given, w=w[:4])
    logits = torch.cat([x, x, u, u]) @ leaf[:4].view(2, 2).T + leaf[4:]
    said = logits.softmax(1)
    l_x = -(targets[:8] * logits[:8].log_softmax(1)).sum(1).mean()
    l_u = (said[8:] - targets[8:]).square().sum() / (4 * 2)
    l_reg = (0.5 * (0.5 / said.mean(0)).log()).sum()
    (l_x + 3.0 * l_u + l_reg).backward()
    assert torch.allclose(model.weights, before - 0.1 * leaf.grad, atol=1e-6)
    # two views each: refined by one model, guessed by two, then all mixed
    assert client.forward_samples == 2 * 4 + 4 * 2 + 2 * (4 + 2)
    assert client.backward_samples == 2 * (4 + 2)


def test_each_model_learns_by_the_division_of_the_other(monkeypatch):
    client, seen = site(), []
    monkeypatch.setattr(DivideMix, "p_clean", lambda self, client, model, name: model.weights[:1] * torch.ones(6))
    monkeypatch.setattr(
        DivideMix,
        "learn",
        lambda self, client, model, other, w, wrap_step: seen.append((float(model.weights[0]), w[0])),
    )
    DivideMix().train(client, both())
    assert seen == [(1.0, 2.0), (2.0, 1.0)]


def test_an_empty_side():
    method = DivideMix()
    for w, forward in ((torch.ones(6), 4 * 6), (torch.zeros(6), 6)):  # nothing unlabelled; nothing labelled
        client, model, other = site(), linear(), linear()
        model.load(identity())
        other.load(identity(scale=2.0))
        before = model.weights.clone()
        method.learn(client, model, other, w, one_step_each())
        assert client.forward_samples == forward
        assert not torch.equal(model.weights, before)
        assert bool(torch.isfinite(model.weights).all())


def test_where_everything_is_clean_the_cost_is_that_of_the_table(monkeypatch):
    # (4m + 2) E F with m = 2 views; both views go back, so B counts m times
    client = site(epochs=3)

    def scored(self, client, model, name):
        return torch.ones_like(client.predict(model=model)[:, 0])

    monkeypatch.setattr(DivideMix, "p_clean", scored)
    DivideMix().train(client, both())
    assert client.forward_samples == (4 * 2 + 2) * 3 * 6
    assert client.backward_samples == 2 * 2 * 3 * 6


def test_the_weight_of_unlabelled_samples_grows_after_the_warm_up():
    client = site()
    client.rounds = 500  # warm-up 100, ramp 16
    weights = []
    for client.round in (101, 108, 116, 400):
        weights.append(DivideMix().weight(client))
    assert weights == pytest.approx([25 / 16, 12.5, 25.0, 25.0])
    assert DivideMix(ramp=0, lambda_u=7.0).weight(client) == 7.0


def test_momentum_is_carried_from_epoch_to_epoch():
    wrap_step, model, other = one_step_each(), linear(), linear()
    first, second, third = (lambda: None for _ in range(3))
    assert wrap_step(first, model) is first
    assert wrap_step(second, other) is second
    assert wrap_step(third, model) is first


def test_the_warm_up_and_its_penalty():
    plain, rewarded = site(), site()
    reply = DivideMix().train_plainly(plain, both())
    assert not torch.equal(reply["weights"], identity()["weights"])
    assert not torch.equal(reply["second.weights"], both()["second.weights"])
    assert (plain.forward_samples, plain.backward_samples) == (12, 12)
    softer = DivideMix(confidence_penalty=True).train_plainly(rewarded, both())["weights"]
    assert float(softer[:4].view(2, 2).diagonal().sum()) < float(reply["weights"][:4].view(2, 2).diagonal().sum())


def test_stages(tmp_path):
    server = one_server(tmp_path, rounds=10)
    for server.round, expected in ((2, ("warm_up", "train_plainly")), (3, ("divide", "train"))):
        assert DivideMix().question(server) == expected


def test_the_verdict_is_the_mean_of_both_divisions():
    client = site()
    verdict = DivideMix().verdict(client, both())
    first, second = linear(), linear()
    first.load(both())
    second.load(both(), "second.")
    expected = 1 - sum(DivideMix().p_clean(client, model, "") for model in (first, second)) / 2
    assert torch.allclose(verdict.p_wrong, expected)
    assert (verdict.p_wrong > 0.5).tolist() == [False] * 4 + [True] * 2
    assert verdict.suggested.tolist() == [0, 0, 1, 1, 0, 1]
