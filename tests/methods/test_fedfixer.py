"""fedfixer: its sieve and regularisers by hand, its edge cases, its cost, and the shared tester."""

from __future__ import annotations

import math
from typing import ClassVar

import pytest
import torch

from by_hand import identity, one_client
from fedwinnow.api import run
from fedwinnow.errors import RunError
from fedwinnow.mathematics.payload import FlatModel
from fedwinnow.methods.fedfixer import FedFixer, sieve
from fedwinnow.models.make_model import make_model
from fedwinnow.models.model import Shape
from fedwinnow.testing import MethodTester, toy_data


class TestFedfixer(MethodTester):
    method: ClassVar[str] = "fedfixer"


class TestFedfixerByEpoch(MethodTester):
    method: ClassVar[str] = "fedfixer:alternate=epoch,select=gmm,distance_on=both"


ROWS = [[2.0, 0.0], [0.0, 2.0], [1.5, 0.0], [0.0, 1.0], [3.0, 0.0]]
LABELS = [0, 1, 0, 0, 1]  # the last two are wrong


def a_client(rows=ROWS, labels=LABELS, **more):
    client = one_client(rows, labels, **more)
    client.spare = lambda: FlatModel(make_model("linear", Shape("rows", (2,), 2)))
    client.round = client.rounds = 10
    return client


# --- selection ------------------------------------------------------------------------------------------------------


def test_the_sieve_by_hand():
    # Cross-entropies of logits (2, 0, 1) differ from their mean as the mean logit 1 differs from each: -1, 1, 0.
    logits = torch.tensor([[2.0, 0.0, 1.0]] * 3)
    labels = torch.tensor([0, 1, 2])
    losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    assert sieve(logits, labels).tolist() == pytest.approx([-1, 1, 0])
    assert sieve(logits, labels).tolist() == pytest.approx((losses - losses.mean()).tolist(), abs=1e-6)
    assert FedFixer().clean(logits, labels).tolist() == [True, False, False]


def test_where_a_model_is_sure_every_other_label_is_sieved_out():
    # The second logit is above the mean of the three; next to a sure answer its label is wrong all the same.
    logits, labels = torch.tensor([[3.0, 2.0, 0.0]] * 3), torch.tensor([0, 1, 2])
    assert FedFixer().clean(logits, labels).tolist() == [True, True, False]
    assert FedFixer().clean(20 * logits, labels).tolist() == [True, False, False]


@pytest.mark.parametrize(
    ("select", "expected"),
    [("cores", [1, 1, 1, 0, 0]), ("small_loss", [1, 1, 1, 1, 0]), ("gmm", [1, 1, 1, 0, 0])],
)
def test_the_selectors(select, expected):
    # losses: .13, .13, .20, 1.31, 3.05
    found = FedFixer(select=select).clean(torch.tensor([*ROWS[:3], [0.0, 3.0], ROWS[4]]), torch.tensor(LABELS))
    assert found.int().tolist() == expected


def test_small_loss_leaves_one_at_least():
    assert FedFixer(select="small_loss", forget=1.0).clean(torch.tensor(ROWS), torch.tensor(LABELS)).sum() == 1


# --- the losses -----------------------------------------------------------------------------------------------------


def test_the_confidence_regulariser_by_hand():
    # Three of five labels are 0: l - beta (0.6 CE(0) + 0.4 CE(1)), beta at its end but cut to 0.5 / 0.6.
    client = a_client()
    of_zero, of_one = math.log1p(math.exp(-2)), 2 + math.log1p(math.exp(-2))
    expected = 0.6 * of_zero + 0.4 * of_one
    logits, y = torch.tensor([[2.0, 0.0]]), torch.tensor([0])
    assert FedFixer(beta=0.5).regularised(client, logits, y).item() == pytest.approx(of_zero - 0.5 * expected, rel=1e-5)
    cut = FedFixer(beta=2.0).regularised(client, logits, y).item()
    assert cut == pytest.approx(of_zero - 0.5 / 0.6 * expected, rel=1e-5)
    client.round = 4  # of ten rounds
    early = FedFixer(beta=0.5).regularised(client, logits, y).item()
    assert early == pytest.approx(of_zero - 0.2 * expected, rel=1e-5)
    steady = FedFixer(beta=0.5, rising_beta=False).regularised(client, logits, y).item()
    assert steady == pytest.approx(of_zero - 0.5 * expected, rel=1e-5)
    assert FedFixer(beta=0.0).regularised(client, logits, y).item() == pytest.approx(of_zero, rel=1e-5)


def test_a_client_of_one_class_still_learns_it():
    client = a_client([[1.0, 0.0], [2.0, 0.0]], [0, 0])
    weights = FedFixer(warm_up=10).train(client, identity())["weights"]
    client.model.load({"weights": weights})
    margins = client.predict() @ torch.tensor([1.0, -1.0])
    assert (margins > torch.tensor([1.0, 2.0])).all()


def test_the_regulariser_has_a_lower_end():
    sure = torch.tensor([[500.0, -500.0]])
    assert FedFixer().regularised(a_client(), sure, torch.tensor([0])).isfinite().all()


# --- two models -----------------------------------------------------------------------------------------------------


def test_the_personal_model_starts_as_the_global_one_and_is_kept():
    client = a_client()
    reply = FedFixer().train(client, identity())
    kept = client.state["personal.weights"]
    assert reply.keys() == {"weights", "samples"}
    assert not torch.equal(kept, identity()["weights"])
    first, second = FedFixer().models_of(client, identity(scale=5.0))
    assert torch.equal(first.weights, identity(scale=5.0)["weights"])
    assert torch.equal(second.weights, kept)


def steps_of(client, method, sent):
    """How far a visit moves the global and the personal model."""
    first, second = (model.weights.clone() for model in method.models_of(client, sent))
    reply = method.train(client, sent)
    return reply["weights"] - first, client.state["personal.weights"] - second


def gradient_at(weights, rows):
    """The gradient of the mean cross-entropy of these rows."""
    client = a_client()
    client.model.load({"weights": weights})
    x, y = torch.tensor([ROWS[row] for row in rows]), torch.tensor([LABELS[row] for row in rows])
    client.model.gradient.zero_()
    torch.nn.functional.cross_entropy(client.model.module(x), y).backward()
    return client.model.gradient.clone()


@pytest.mark.parametrize("alternate", ["batch", "epoch"])
def test_each_learns_from_what_the_other_picks(alternate):
    client = a_client(lr=0.1)
    mirrored = torch.tensor([[0.0, 1.0], [1.0, 0.0]]).flatten()
    client.state["personal.weights"] = torch.cat([mirrored, torch.zeros(2)])  # it takes the last two for clean
    method = FedFixer(beta=0.0, lambda_d=0.0, alternate=alternate)
    of_global, of_personal = steps_of(client, method, identity())
    assert torch.allclose(of_global, -0.1 * gradient_at(identity()["weights"], [3, 4]), atol=1e-6)
    expected = gradient_at(torch.cat([mirrored, torch.zeros(2)]), [0, 1, 2])
    assert torch.allclose(of_personal, -0.1 * expected, atol=1e-6)
    assert client.notes["selected"].tolist() == [False, False, False, True, True]


def test_in_the_warm_up_both_learn_from_everything():
    client = a_client(lr=0.1)
    client.round = 1
    of_global, of_personal = steps_of(client, FedFixer(beta=0.0), identity())
    assert torch.allclose(of_global, -0.1 * gradient_at(identity()["weights"], range(5)), atol=1e-6)
    assert torch.allclose(of_global, of_personal, atol=1e-7)
    assert not client.notes


def test_nothing_selected_is_no_step():
    client = a_client([[2.0, 0.0], [3.0, 0.0]], [1, 1], momentum=0.9)
    client.state["personal.weights"] = identity(scale=2.0)["weights"]
    of_global, of_personal = steps_of(client, FedFixer(lambda_d=7.0), identity())
    assert not of_global.any()
    assert not of_personal.any()


def test_the_distance_regulariser_by_hand():
    # lambda (theta - w) is added to the slope of the personal model only.
    both = {}
    for strength in (0.0, 2.0):
        client = a_client(lr=0.1)
        client.state["personal.weights"] = identity(scale=2.0)["weights"]
        both[strength] = steps_of(client, FedFixer(beta=0.0, lambda_d=strength), identity())
    pull = -0.1 * 2.0 * (identity(scale=2.0)["weights"] - identity()["weights"])
    assert torch.allclose(both[2.0][1] - both[0.0][1], pull, atol=1e-6)
    assert torch.equal(both[2.0][0], both[0.0][0])


def test_an_own_model_that_breaks_is_named():
    client = a_client(lr=1e30, epochs=4)
    with pytest.raises(RunError, match="lower lambda_d"):
        FedFixer(select="small_loss", lambda_d=1e30).train(client, identity())


def test_one_model_alone_picks_for_itself():
    client = a_client(lr=0.1)
    reply = FedFixer(beta=0.0, dual=False).train(client, identity())
    assert torch.allclose(
        reply["weights"], identity()["weights"] - 0.1 * gradient_at(identity()["weights"], [0, 1, 2]), atol=1e-6
    )
    assert not client.state


def test_the_verdict_is_the_mean_of_both_sieves():
    client = a_client()
    client.state["personal.weights"] = identity(scale=3.0)["weights"]
    verdict = FedFixer().verdict(client, identity())
    # The margins to the mean logit are half of the differences: 2, 2, 1.5, -1, -3.
    for found, margin in zip(verdict.p_wrong.tolist(), (2, 2, 1.5, -1, -3), strict=True):
        expected = (1 / (1 + math.exp(margin / 2)) + 1 / (1 + math.exp(3 * margin / 2))) / 2
        assert found == pytest.approx(expected, rel=1e-5)
    assert verdict.suggested.tolist() == [0, 1, 0, 1, 0]


def test_what_is_counted(tmp_path):
    # 2EF + 2EB; the personal model never travels. Selecting by epoch costs 2EF more.
    settings = {"data": toy_data(120), "model": "linear", "clients": 4, "rounds": 1, "epochs": 3, "participation": 1.0}
    row = run(out=tmp_path / "batch", method="fedfixer", **settings).rounds[0]
    assert (row["forward_samples"], row["backward_samples"]) == (2 * 3 * 120, 2 * 3 * 120)
    assert (row["bytes_down"], row["bytes_up"]) == (4 * 36, 4 * (36 + 8))
    row = run(out=tmp_path / "epoch", method="fedfixer:alternate=epoch", **settings).rounds[0]
    assert (row["forward_samples"], row["backward_samples"]) == (4 * 3 * 120, 2 * 3 * 120)
