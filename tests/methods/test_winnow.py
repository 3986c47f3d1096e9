"""winnow: its rules by hand, and the shared tester."""

from __future__ import annotations

import math
from typing import ClassVar

import pytest
import torch

from by_hand import conversation, identity, one_client, one_server
from fedwinnow.api import run
from fedwinnow.errors import UsageError
from fedwinnow.mathematics.flips import Flips
from fedwinnow.methods.winnow import Winnow
from fedwinnow.testing import MethodTester, comparable, toy_data


class TestWinnow(MethodTester):
    method: ClassVar[str] = "winnow"
    rounds: ClassVar[int] = 8


class TestWinnowWithEverythingElse(MethodTester):
    method: ClassVar[str] = (
        "winnow:filter=relative,fit=own,select=threshold,visits=last,prior=given,weigh=all,steady=0,confidence=1"
    )
    rounds: ClassVar[int] = 6


ROWS = [[2.0, 0.0], [1.0, 0.0], [0.0, 2.0], [0.0, 1.0], [2.0, 0.0]]
LABELS = [0, 0, 1, 1, 1]  # the last one is wrong
FILTER = {"filter": Flips.start(2).flat}


def sent(scale=1.0):
    return identity(scale=scale) | FILTER


# --- what a site thinks of its labels -------------------------------------------------------------------------------


def test_probabilities_have_the_sites_class_mix_in_them():
    # counts 2 and 3, half a sample added: 2.5 to 3.5; logits 2 and 0
    found = Winnow().look(one_client(ROWS, LABELS), sent())[0]
    right, wrong = 2.5 * math.exp(2), 3.5
    assert found.tolist() == pytest.approx([right / (right + wrong), wrong / (right + wrong)], rel=1e-6)


@pytest.mark.parametrize(("prior", "counts"), [("kept", (4, 1)), ("given", (2, 3)), ("none", (1, 1))])
def test_whose_class_mix(prior, counts):
    client = one_client(ROWS, LABELS)
    client.state["trained_on"] = torch.tensor([4, 1])
    first, second = Winnow(prior=prior).log_mix(client).tolist()
    half = 0.5 if prior != "none" else 0.0
    assert first - second == pytest.approx(math.log((counts[0] + half) / (counts[1] + half)))


def test_probabilities_are_averaged_over_visits():
    client, method = one_client(ROWS, LABELS), Winnow(prior="none")
    first = method.observe(client, sent(1.0))[0]
    second, mean = method.observe(client, sent(3.0))
    assert mean.tolist() == [pytest.approx(row, abs=1e-6) for row in ((first + second) / 2).tolist()]
    third, mean = method.observe(client, sent(0.0))
    assert float(mean[0, 0]) == pytest.approx(float((first + second + third)[0, 0]) / 3, abs=1e-6)
    assert int(client.state["visits"]) == 3


def test_or_only_the_last_visit_counts():
    client, method = one_client(ROWS, LABELS), Winnow(prior="none", visits="last")
    method.observe(client, sent(1.0))
    now, mean = method.observe(client, sent(3.0))
    assert torch.equal(now, mean)


def test_one_step_of_em_at_a_site_by_hand():
    client, method = one_client([[2.0, 0.0], [0.0, 2.0]], [0, 0]), Winnow(sharpen=2.0)
    client.state |= {"mean": torch.tensor([[0.8, 0.2], [0.2, 0.8]]), "rates": torch.tensor([0.25, 0.5]).double()}
    found = method.expect(client, {"filter": Flips.start(2).flat})["statistics"]
    # squared and normalised: 16/17 and 1/17; with two classes a wrong 0 can only be a 1; weights 3 to 1
    first, second = 1 / (1 + 3 * 16), 16 / (16 + 3)
    assert found.tolist() == [[0.0, 0.0], [pytest.approx(first + second, rel=1e-5), 0.0]]
    overall = (first + second) / 2  # of the site and, as it has no other class, of class 0
    assert client.state["rates"].tolist() == pytest.approx([overall, overall], rel=1e-5)


def test_a_site_by_itself_finds_its_wrong_label():
    client, method = one_client(ROWS, LABELS), Winnow(fit="own", prior="none")
    p_wrong, rates = method.opinion(client, method.look(client, sent(3.0)), sent())
    assert (p_wrong > 0.5).tolist() == [False] * 4 + [True]
    assert float(rates[1]) > float(rates[0])


def test_the_verdict_suggests_another_class():
    verdict = Winnow(prior="none").verdict(one_client(ROWS, LABELS), sent(3.0))
    assert (verdict.p_wrong > 0.5).tolist() == [False] * 4 + [True]
    assert verdict.suggested.tolist() == [0, 0, 1, 1, 0]


# --- what a site trains on ------------------------------------------------------------------------------------------


def test_a_hard_class_does_not_die():
    # Every sample of class 1 is worse than any of class 0: a threshold drops them all, the quota keeps its share.
    client = one_client([[0.0, 0.0]] * 6, [0, 0, 0, 1, 1, 1])
    p_wrong = torch.tensor([0.1, 0.1, 0.1, 0.6, 0.7, 0.8])
    client.state["rates"] = torch.tensor([0.3, 0.4])
    assert Winnow().selected(client, p_wrong).tolist() == [1, 1, 0, 1, 1, 0]
    assert Winnow(select="threshold").selected(client, p_wrong).tolist() == [1, 1, 1, 0, 0, 0]


def test_a_site_that_seems_clean_uses_all_it_has():
    client = one_client([[0.0, 0.0]] * 4, [0, 0, 0, 1])
    client.state["rates"] = torch.tensor([0.34, 0.0])
    p_wrong = torch.tensor([0.0, 0.0, 0.6, 0.0])  # 0.15 on average
    assert Winnow(clean_rate=0.16).selected(client, p_wrong).all()
    assert Winnow(clean_rate=0.14).selected(client, p_wrong).tolist() == [True, True, False, True]


@pytest.mark.parametrize("select", ["quota", "threshold"])
def test_somebody_is_always_kept(select):
    client = one_client([[0.0, 0.0]] * 3, [0, 0, 1])
    client.state["rates"] = torch.tensor([0.99, 0.99])
    assert Winnow(select=select).selected(client, torch.tensor([0.9, 0.8, 0.95])).tolist() == [0, 1, 0]


def trained(method, scale=3.0):
    client = one_client(ROWS, LABELS)
    reply = method.train(client, sent(scale))
    return client, reply


def test_a_confident_pseudo_label_joins():
    # wrong by the mixture: only the last; the model is sure of class 0 there
    client, reply = trained(Winnow(prior="none", shrinkage=1.0, clean_rate=0, confidence=0.8))
    assert client.notes["pseudo_labels"].tolist() == [-1, -1, -1, -1, 0]
    assert client.notes["selected"].tolist() == [True] * 4 + [False]
    assert int(reply["samples"]) == 5
    assert client.state["trained_on"].tolist() == [3, 2]


def test_without_confidence_it_is_left_out_and_does_not_count():
    client, reply = trained(Winnow(prior="none", shrinkage=1.0, clean_rate=0))
    assert client.notes["pseudo_labels"].tolist() == [-1] * 5
    assert int(reply["samples"]) == 4
    assert int(trained(Winnow(prior="none", shrinkage=1.0, clean_rate=0, weigh="all"))[1]["samples"]) == 5


def test_the_class_mix_is_in_the_logits_of_training():
    # One sample with zero input: logits are 0, so only the bias learns. Classes 3 to 1 (with the half: 3.5 to 1.5).
    client = one_client([[0.0, 0.0]] * 4, [0, 0, 0, 1], lr=1.0)
    start = {"weights": torch.zeros(6)} | FILTER
    reply = Winnow(adjust=1.0, mixup=0.0).train_plainly(client, start)
    # the gradient of the bias of class 0 is p_0 - 3/4 with p_0 = 3.5 / 5
    assert float(reply["weights"][4]) == pytest.approx(0.75 - 0.7, abs=1e-6)
    plain = Winnow(adjust=0.0, mixup=0.0).train_plainly(one_client([[0.0, 0.0]] * 4, [0, 0, 0, 1], lr=1.0), start)
    assert float(plain["weights"][4]) == pytest.approx(0.75 - 0.5, abs=1e-6)


# --- the server -----------------------------------------------------------------------------------------------------


def answers(ask, client, payload):
    if ask == "expect":
        assert set(payload) == {"filter"}  # the model does not travel for a step of EM
        return {"statistics": torch.tensor([[3.0, 0.3, 0.06], [1.0, 0.9, 0.82]]).double()}
    return {"weights": torch.full((6,), float(client)), "samples": torch.tensor(2)}


def played(folder, method, rounds):
    server = one_server(folder, clients=4, rounds=10)
    method.start(server)
    asked = []
    for number in range(1, rounds + 1):
        server.begin(number)
        asked.append(conversation(method, server, answers))
    return server, asked


def test_half_a_round_is_refused():
    with pytest.raises(UsageError, match=r"warm_up=2\.5 was given; allowed: whole rounds, or a share below 1"):
        Winnow(warm_up=2.5)


def test_em_asks_everybody_who_was_seen_after_the_warm_up(tmp_path):
    server, asked = played(tmp_path, Winnow(warm_up=1, em_steps=2, filter="relative"), 2)
    (first,), second = asked
    assert first[0] == "train_plainly"
    assert [ask for ask, _ in second] == ["expect", "expect", "train"]
    assert second[0][1] == first[1]
    # per site 3 and 1 samples: means 0.1 and 0.9; squares 0.06 - 3 * 0.01 and 0.82 - 0.81, over 4
    assert server.state["filter"].tolist() == pytest.approx([0.1, 0.9, 0.01])


def test_every_site_by_itself_needs_no_em_at_the_server(tmp_path):
    _, asked = played(tmp_path, Winnow(warm_up=1, fit="own"), 2)
    assert [ask for ask, _ in asked[1]] == ["train"]


def test_a_site_is_sent_the_filter_beside_the_model(tmp_path):
    method, server = Winnow(), one_server(tmp_path)
    method.start(server)
    assert torch.equal(method.send(server, 0)["weights"], server.weights["weights"])
    assert torch.equal(method.send(server, 0)["filter"], server.state["filter"])


def test_a_run_that_goes_on_does_so_from_the_global_model(tmp_path):
    settings = {"data": toy_data(), "model": "linear", "method": "winnow:warm_up=2", "clients": 3, "epochs": 1}
    run(out=tmp_path / "a", rounds=3, **settings)
    longer = run(out=tmp_path / "a", rounds=5, resume=True, **settings)
    assert comparable(longer.folder) == comparable(run(out=tmp_path / "b", rounds=5, **settings).folder)


# --- cost -----------------------------------------------------------------------------------------------------------


def test_cost(tmp_path):
    # (E + 1) n forward and E n backward where everything is kept; per step of EM C x C numbers down and up
    clients, samples, epochs, steps, model = 4, 120, 3, 2, 4 * (2 * 3 + 3)
    first, second = run(
        out=tmp_path,
        data=toy_data(samples),
        model="linear",
        method=f"winnow:warm_up=1,em_steps={steps}",
        clients=clients,
        participation=1.0,
        rounds=2,
        epochs=epochs,
        noise="none",
        optimizer="sgd:lr=0.1",
    ).rounds
    table = 8 * 3 * 3
    down, up = clients * (model + table), clients * (model + 8)
    assert (first["forward_samples"], first["backward_samples"]) == ((epochs + 1) * samples, epochs * samples)
    assert (first["bytes_down"], first["bytes_up"]) == (down, up)
    left_out = epochs * samples - second["backward_samples"]
    assert 0 <= left_out < epochs * samples
    assert second["forward_samples"] == (epochs + 1) * samples - left_out
    assert second["bytes_down"] == down + steps * clients * table
    assert second["bytes_up"] == up + steps * clients * table
